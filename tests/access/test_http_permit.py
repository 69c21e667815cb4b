from agentos.access.http_permit import make_permit
from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.permissions.rule import PermissionSet, Rule
from agentos.services.http.destination import parse_destination
from agentos_sdk.errors import ApprovalRequired, PermissionDenied
from tests.access.making import make_callers
from tests.permissions.strategies import NAMES
from tests.support.rights import Notebook

AGENT = 7
APPROVED, ALLOWED, ASKED, DENIED = (
    parse_destination(f"https://{host}/") for host in ("first.io", "may.io", "other.io", "no.io")
)

ANEW = Rule("ask", "domains", "*.io", "here")


def test_an_approved_request_is_sent_until_another_rule_asks_or_denies_and_no_other_one_is() -> None:
    callers = make_callers(Registry())
    authorizer = callers.authorizer
    domains = PermissionSet(
        "asks",
        (
            Rule("allow", "calls", "HTTP", "here"),
            Rule("allow", "domains", "may.io", "here"),
            Rule("ask", "domains", "first.io", "here"),
            Rule("ask", "domains", "other.io", "here"),
        ),
    )
    authorizer.add_caller(AGENT, domains, NAMES)
    caller = Caller(AGENT, "agent", "a", Table(()), authorizer, Notebook())
    permit = make_permit(callers, caller, APPROVED)

    refusals = [permit.find_refusal(each) for each in (APPROVED, ALLOWED, ASKED, DENIED)]

    assert [type(each) for each in refusals] == [type(None), type(None), ApprovalRequired, PermissionDenied]
    assert isinstance(make_permit(callers, caller).find_refusal(APPROVED), ApprovalRequired)
    hops = [permit.follow("GET", f"https://{each.host}/") for each in (APPROVED, ALLOWED)]
    assert [hop is not None for hop in hops] == [False, True], "a redirect needs a rule that allows it"
    assert permit.follow("GET", "ftp://may.io/") is None

    authorizer.replace_set(AGENT, PermissionSet("asks", (*domains.rules[:2], ANEW)), callers.admit_operator(1000).id)
    assert isinstance(permit.find_refusal(APPROVED), ApprovalRequired)
