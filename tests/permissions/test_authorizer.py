import pytest

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.table import Table
from agentos.permissions.authorizer import ANY, OWN, SubtreeAuthorizer
from agentos_sdk.errors import PermissionDenied

AUTHORIZER = SubtreeAuthorizer(lambda agent, ancestor: (agent, ancestor) == (8, 7))
AGENT = Caller(7, "agent", "seven", Table(()), AUTHORIZER)
OPERATOR = Caller(1, "operator", "op", Table(()), AUTHORIZER)


@pytest.mark.parametrize("action", sorted(OWN))
def test_an_agent_may_do_to_itself_and_its_own_what_it_may_not_to_others(action: str) -> None:
    AGENT.check(Right(action, agent=7))
    AGENT.check(Right(action, agent=8))
    with pytest.raises(PermissionDenied, match=f"{action}: an agent may {action} only itself"):
        AGENT.check(Right(action, agent=9))


@pytest.mark.parametrize("action", sorted(ANY))
def test_some_things_everybody_may(action: str) -> None:
    AGENT.check(Right(action, agent=9))


def test_what_is_not_listed_is_the_operators() -> None:
    with pytest.raises(PermissionDenied, match="only the operator"):
        AGENT.check(Right("format_disk"))
    OPERATOR.check(Right("format_disk"))
    OPERATOR.check(Right("kill", agent=7))
