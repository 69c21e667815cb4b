"""Which hosts and ports a caller's rules could allow: what a jail's DNS answers, and where the kernel listens."""

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Effect
from agentos.kernel.table import Table
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.levels import LEVELS
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import PermissionSet, Rule
from tests.support.rights import Notebook
from tests.support.runs.rows import each_row

NAMES = Names("/home/op")


def rules(*texts: str) -> PermissionSet:
    """``allow HOST`` and the like; other calls are those of the minimal level."""
    written = [Rule(effect, "domains", text, "here") for effect, text in map(split, texts)]
    return PermissionSet("here", (*written, *LEVELS["minimal"].rules))


def split(text: str) -> tuple[Effect, str]:
    effect, _, pattern = text.partition(" ")
    assert effect in ("allow", "ask", "deny")
    return effect, pattern  # type: ignore[return-value]


def holding(given: PermissionSet) -> tuple[PermissionAuthorizer, Caller]:
    authorizer = PermissionAuthorizer(AgentTree(lambda *_: True, str, lambda *_: False, lambda *_: False))
    authorizer.add_caller(1, given, NAMES)
    return authorizer, Caller(1, "agent", "a", Table([]), authorizer, Notebook())


@each_row(
    ("texts", "could"),
    [
        (["allow a.test"], True), (["allow a.test:5432"], True), (["allow GET a.test/x/**"], True),
        (["ask *.test"], True), (["allow *:*"], True),
        ([], False), (["allow b.test"], False), (["allow *.a.test"], False), (["deny a.test", "allow *"], False),
        (["deny a.test:22", "allow *"], True), (["deny POST a.test", "allow *"], True),
    ],
)  # fmt: skip
def test_a_host_could_be_reached_by_some_rule(texts: list[str], could: bool) -> None:
    authorizer, caller = holding(rules(*texts))

    assert authorizer.could_reach(caller, "a.test") is could


def test_every_layer_has_to_allow_it() -> None:
    authorizer, caller = holding(rules("allow a.test", "allow b.test"))
    authorizer.add_layer(1, rules("allow b.test"))

    assert not authorizer.could_reach(caller, "a.test")
    assert authorizer.could_reach(caller, "b.test")


def test_the_ports_are_those_that_grants_and_questions_name() -> None:
    authorizer, caller = holding(rules("allow a.test:5432", "ask b.test:8443", "allow c.test", "deny d.test:22"))

    assert authorizer.named_ports(caller) == {80, 443, 5432, 8443}


def test_observers_are_called_under_the_changed_rules() -> None:
    authorizer, caller = holding(rules("allow a.test"))
    seen: list[bool] = []
    authorizer.observers.append(lambda: seen.append(authorizer.could_reach(caller, "a.test")))

    authorizer.add_layer(1, rules())

    assert seen == [False]


def test_a_caller_that_has_ended_reaches_nothing() -> None:
    authorizer, caller = holding(rules("allow *:*"))
    authorizer.remove_caller(1)

    assert not authorizer.could_reach(caller, "a.test")
    assert authorizer.named_ports(caller) == set()
