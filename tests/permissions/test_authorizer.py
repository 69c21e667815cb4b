"""A family of callers: a grandparent, a parent, a child and a stranger; each holds a set within those above it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.table import Table
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.levels import LEVELS
from agentos.permissions.link_sets import LINK_SETS
from agentos.permissions.rule import EFFECTS, PermissionSet, Rule
from agentos.services.http.destination import parse_destination
from agentos_sdk.errors import ApprovalRequired, NotFound, PermissionDenied, QuotaExceeded
from agentos_sdk.opcodes import Op
from tests.permissions.strategies import ABOUT_AGENTS, NAMES, objects, sets
from tests.support.rights import Notebook, require_right
from tests.support.runs.rows import each_row

OPERATOR, GRANDPARENT, PARENT, CHILD, BELOW, STRANGER = 1, 2, 3, 4, 5, 9
PARENTS = {GRANDPARENT: OPERATOR, PARENT: GRANDPARENT, CHILD: PARENT, BELOW: CHILD, STRANGER: OPERATOR}
CALLED = {GRANDPARENT: "ann", PARENT: "bea", CHILD: "cid", BELOW: "w-1", STRANGER: "bob", OPERATOR: "operator#1"}


def descends(caller: Caller, other: int) -> bool:
    above = PARENTS.get(other)
    while above is not None and above != caller.id:
        above = PARENTS.get(above)
    return above is not None


def is_parent(number: int, other: int) -> bool:
    return PARENTS.get(number) == other


def are_siblings(one: int, other: int) -> bool:
    return PARENTS.get(one, 0) == PARENTS.get(other)


def family(*own: PermissionSet) -> PermissionAuthorizer:
    """Sets for the operator and for those below, from the top."""
    authorizer = PermissionAuthorizer(AgentTree(descends, CALLED.__getitem__, is_parent, are_siblings))
    authorizer.add_caller(OPERATOR, LEVELS["unrestricted"], NAMES, is_operator=True)
    for number, one in zip((GRANDPARENT, PARENT, CHILD, BELOW), own, strict=False):
        authorizer.add_caller(number, one, NAMES, PARENTS[number])
    return authorizer


def caller(authorizer: PermissionAuthorizer, number: int) -> Caller:
    kind = "operator" if number == OPERATOR else "agent"
    return Caller(number, kind, CALLED[number], Table(()), authorizer, Notebook())  # type: ignore[arg-type]


def custom(*lines: tuple[str, str, str], level: str = "sandboxed") -> PermissionSet:
    own = tuple(Rule(effect, kind, text, "here") for effect, kind, text in lines)  # type: ignore[arg-type]
    return PermissionSet("here", (*own, *LEVELS[level].rules), level)


def test_a_child_that_is_given_more_still_has_no_more_than_its_parent() -> None:
    authorizer = family(LEVELS["sandboxed"], LEVELS["readonly"], LEVELS["sandboxed"])

    with pytest.raises(PermissionDenied, match="WRITE: no rule of level readonly allows it"):
        require_right(caller(authorizer, CHILD), Right("write", "/workspace/x", shown_as=None))
    require_right(caller(authorizer, GRANDPARENT), Right("write", "/workspace/x"))


def test_a_caller_that_is_narrowed_narrows_every_caller_below_it_at_once() -> None:
    authorizer = family(LEVELS["sandboxed"], LEVELS["sandboxed"])
    child = caller(authorizer, PARENT)
    require_right(child, Right("think", "gemini-2"))

    authorizer.replace_set(GRANDPARENT, LEVELS["readonly"], OPERATOR)

    with pytest.raises(PermissionDenied):
        require_right(child, Right("think", "gemini-2"))
    assert Op.THINK in authorizer.refused_calls(PARENT, [Op.THINK, Op.LIST])
    assert Op.LIST not in authorizer.refused_calls(PARENT, [Op.THINK, Op.LIST])


def test_a_connection_that_gave_rights_away_never_gets_them_back() -> None:
    authorizer = family()
    guest = caller(authorizer, OPERATOR)

    authorizer.add_layer(OPERATOR, LEVELS["readonly"])
    authorizer.add_layer(OPERATOR, LEVELS["unrestricted"])

    with pytest.raises(PermissionDenied):
        require_right(guest, Right("think", "llama"))


@each_row(
    ("action", "roles"),
    [
        ("approvals", {"viewer", "viewer-with-contents", "approver"}),
        ("decide", {"approver"}),
        ("get_contents", {"viewer-with-contents"}),
        ("set_audit_config", set()),
    ],
)
def test_of_what_is_the_operators_alone_only_its_links_have_their_part(action: str, roles: set[str]) -> None:
    """Not a caller whose set has the same rules, and no longer one that has given them up."""

    def decide(held: PermissionSet) -> str:
        authorizer = family()
        guest = Caller(OPERATOR, "guest", "web", Table(()), authorizer, Notebook())
        authorizer.add_layer(OPERATOR, held)
        return authorizer.decide(guest, Right(action)).effect

    for role, held in LINK_SETS.items():
        assert decide(held) == ("allow" if role in roles else "deny"), role
        assert decide(PermissionSet(held.name, held.rules)) == "deny", role
        authorizer = family()
        authorizer.add_layer(OPERATOR, held)
        authorizer.add_layer(OPERATOR, LEVELS["readonly"])
        guest = Caller(OPERATOR, "guest", "web", Table(()), authorizer, Notebook())
        assert authorizer.decide(guest, Right(action)).effect == "deny", role
    assert decide(custom(("allow", "calls", "*"))) == decide(LEVELS["unrestricted"]) == "deny"


def test_ones_own_rights_may_be_narrowed_and_never_widened() -> None:
    authorizer = family(custom(("allow", "read", "/data/**")))

    for wider in (LEVELS["standard"], LEVELS["unrestricted"], custom(("allow", "read", "/srv/**"))):
        with pytest.raises(PermissionDenied, match="you can't grant"):
            authorizer.check_narrower(wider, GRANDPARENT, "permissions")
    for narrower in (LEVELS["readonly"], LEVELS["sandboxed"], custom(("allow", "read", "/data/x/*.txt"))):
        authorizer.check_narrower(narrower, GRANDPARENT, "permissions")


def test_what_bounds_one_from_above_is_more_than_one_has() -> None:
    authorizer = family(LEVELS["sandboxed"], LEVELS["readonly"])

    with pytest.raises(
        PermissionDenied, match="permissions: you can't grant sandboxed, you hold no more than readonly"
    ):
        authorizer.check_narrower(LEVELS["sandboxed"], PARENT, "permissions")


def test_a_call_without_a_grant_of_set_perms_is_refused_on_oneself_too() -> None:
    with pytest.raises(PermissionDenied, match="no rule of level readonly"):
        require_right(caller(family(LEVELS["readonly"]), GRANDPARENT), Right("set_perms", agent=GRANDPARENT))


def test_decisions_stay_as_fast_however_often_one_narrows_oneself() -> None:
    """Each layer costs its part of every decision: their number is bounded, and an equal set adds none."""
    authorizer = family(LEVELS["sandboxed"])
    authorizer.add_layer(GRANDPARENT, custom(("deny", "read", "/data/0")))

    for _ in range(1000):
        authorizer.add_layer(GRANDPARENT, custom(("deny", "read", "/data/0")))
        authorizer.add_layer(GRANDPARENT, LEVELS["sandboxed"])
    assert len(authorizer.permissions_of(GRANDPARENT).sets()) == 2
    for number in range(1, 8):
        authorizer.add_layer(GRANDPARENT, custom(("deny", "read", f"/data/{number}")))
    for number in range(8, 100):
        with pytest.raises(QuotaExceeded, match="own rights 8 times"):
            authorizer.add_layer(GRANDPARENT, custom(("deny", "read", f"/data/{number}")))

    assert len(authorizer.permissions_of(GRANDPARENT).sets()) == 9
    authorizer.add_layer(GRANDPARENT, custom(("deny", "read", "/data/5")))  # it holds that already


def test_the_operator_above_may_set_anew_what_was_narrowed() -> None:
    authorizer = family(LEVELS["sandboxed"], LEVELS["sandboxed"])
    below = caller(authorizer, PARENT)
    authorizer.add_layer(GRANDPARENT, LEVELS["readonly"])
    authorizer.add_layer(GRANDPARENT, LEVELS["minimal"])
    assert below.authorizer.decide(below, Right("think", "llama")).effect == "deny"

    authorizer.replace_set(GRANDPARENT, LEVELS["sandboxed"], OPERATOR)

    require_right(below, Right("think", "llama"))
    assert len(authorizer.permissions_of(GRANDPARENT).sets()) == 1


def test_what_is_declared_anew_replaces_narrowings_and_what_limited_them_and_may_be_narrowed_as_often_again() -> None:
    authorizer = family(LEVELS["sandboxed"])
    authorizer.add_caller(STRANGER, LEVELS["readonly"], NAMES)
    authorizer.replace_set(GRANDPARENT, LEVELS["sandboxed"], STRANGER)  # limited by what its giver holds
    authorizer.add_layer(GRANDPARENT, LEVELS["minimal"])

    authorizer.replace_all(GRANDPARENT, LEVELS["sandboxed"], NAMES)

    assert authorizer.permissions_of(GRANDPARENT).sets() == (LEVELS["sandboxed"],)
    for number in range(8):
        authorizer.add_layer(GRANDPARENT, custom(("deny", "read", f"/data/{number}")))
    authorizer.replace_set(GRANDPARENT, LEVELS["sandboxed"], OPERATOR)
    assert authorizer.permissions_of(GRANDPARENT).sets() == (LEVELS["sandboxed"],)


@each_row("action", ["set_perms", "kill", "inspect", "explain", "pause"])
def test_an_ancestor_may_do_to_those_below_it_what_it_may_not_to_others(action: str) -> None:
    authorizer = family(LEVELS["sandboxed"], LEVELS["sandboxed"], LEVELS["sandboxed"])
    parent = caller(authorizer, PARENT)

    require_right(parent, Right(action, agent=CHILD))
    for other in (GRANDPARENT, STRANGER):
        with pytest.raises(PermissionDenied, match="neither you nor an agent that you spawned"):
            require_right(parent, Right(action, agent=other))
    require_right(caller(authorizer, OPERATOR), Right(action, agent=STRANGER))


def test_the_default_denials_hold_for_the_operator() -> None:
    authorizer = family()

    with pytest.raises(PermissionDenied, match="default denials"):
        require_right(caller(authorizer, OPERATOR), Right("read", "/home/ada/.ssh/id_ed25519"))


def test_what_a_person_has_to_agree_to_is_refused_as_such_and_noted() -> None:
    authorizer = family(custom(("ask", "read", "/workspace/plan.md")))
    asking = caller(authorizer, GRANDPARENT)

    with pytest.raises(ApprovalRequired, match="a person has to agree") as refused:
        require_right(asking, Right("read", "/workspace/plan.md"))

    assert refused.value.details["rule"] == "ask read /workspace/plan.md (here)"
    [entry] = asking.audit.entries  # type: ignore[attr-defined]
    assert (entry.decision, entry.outcome, entry.about) == ("ask", "approval_required", "/workspace/plan.md")


def test_a_caller_that_has_left_holds_nothing_and_those_below_it_keep_what_they_had() -> None:
    authorizer = family(LEVELS["sandboxed"], LEVELS["readonly"])
    gone, child = caller(authorizer, GRANDPARENT), caller(authorizer, PARENT)

    authorizer.remove_caller(GRANDPARENT)

    assert authorizer.decide(gone, Right("list")).effect == "deny"
    with pytest.raises(NotFound):
        authorizer.permissions_of(GRANDPARENT)
    assert authorizer.decide(child, Right("list")).effect == "allow"
    assert authorizer.decide(child, Right("think", "llama")).effect == "deny"


def test_a_level_that_is_more_than_one_has_is_refused_when_it_is_given() -> None:
    authorizer = family(LEVELS["readonly"])

    with pytest.raises(PermissionDenied, match="level: you can't grant sandboxed, you hold no more than readonly"):
        authorizer.check_not_wider(LEVELS["sandboxed"], GRANDPARENT, "level")
    authorizer.check_not_wider(LEVELS["readonly"], GRANDPARENT, "level")
    authorizer.check_not_wider(custom(), GRANDPARENT, "level")  # what it has beyond that is cut


def index(authorizer: PermissionAuthorizer, number: int, right: Right) -> int:
    return EFFECTS.index(authorizer.decide(caller(authorizer, number), right).effect)


@given(sets, sets, sets, objects)
def test_a_childs_grants_are_within_its_parents(
    top: PermissionSet, middle: PermissionSet, low: PermissionSet, right: Right
) -> None:
    authorizer = family(top, middle, low)

    found = [index(authorizer, number, right) for number in (OPERATOR, GRANDPARENT, PARENT, CHILD)]

    assert found == sorted(found, reverse=True)


@given(sets, sets, sets, st.sampled_from(ABOUT_AGENTS), st.sampled_from((BELOW, STRANGER)))
def test_a_childs_rights_over_others_are_within_its_parents(
    top: PermissionSet, middle: PermissionSet, low: PermissionSet, action: str, other: int
) -> None:
    authorizer = family(top, middle, low)
    right = Right(action, agent=other)

    found = [index(authorizer, number, right) for number in (OPERATOR, GRANDPARENT, PARENT, CHILD)]

    assert found == sorted(found, reverse=True)


def test_no_narrowing_of_an_agents_own_changes_the_rule_that_asks() -> None:
    """Remembered answers are bound to it: an agent can't make a refusal void."""
    authorizer = family(custom(("ask", "read", "/workspace/**")))
    asking, plan = caller(authorizer, GRANDPARENT), Right("read", "/workspace/plan.md")
    before = authorizer.decide(asking, plan)

    authorizer.add_layer(GRANDPARENT, custom(("ask", "read", "/workspace/plan.md")))

    assert authorizer.decide(asking, plan) == before
    assert before.rule == "ask read /workspace/** (here)"


@given(sets, sets, objects)
def test_what_a_table_refuses_is_denied_whatever_it_asks_for(
    top: PermissionSet, low: PermissionSet, right: Right
) -> None:
    authorizer = family(top, low)
    refused = authorizer.refused_calls(PARENT, list(Op))

    decision = authorizer.decide(caller(authorizer, PARENT), right)

    if (whole := refused.get(Op[right.action.upper()])) is not None:
        assert EFFECTS.index(decision.effect) <= EFFECTS.index(whole.effect)


def grants(authorizer: PermissionAuthorizer, number: int, what: str, *, approved: bool = False) -> bool:
    return authorizer.grants_address(caller(authorizer, number), parse_destination(what), approved=approved)


@each_row(
    ("own", "what", "expected"),
    [
        (("allow", "domains", "10.0.0.5:8080"), "CONNECT 10.0.0.5:8080", True),
        (("allow", "domains", "10.0.0.5:8080"), "http://10.0.0.5:8080/x", True),
        (("allow", "domains", "10.0.0.5:8080"), "CONNECT 10.0.0.5:8081", False),
        (("allow", "domains", "10.0.0.5:8080"), "CONNECT 10.0.0.6:8080", False),
        (("allow", "domains", "*:*"), "CONNECT 10.0.0.5:8080", False),
        (("allow", "domains", "GET 10.0.0.5:8080/x/**"), "http://10.0.0.5:8080/x/y", True),
        (("allow", "domains", "GET 10.0.0.5:8080/x/**"), "http://10.0.0.5:8080/y", False),
        (("allow", "domains", "GET 10.0.0.5:8080/x/**"), "CONNECT 10.0.0.5:8080", False),
        (("allow", "domains", "*"), "CONNECT 8.8.8.8:443", False),  # a public one of the host's own interfaces
        (("allow", "domains", "8.8.8.8:443"), "CONNECT 8.8.8.8:443", True),
    ],
)
def test_an_address_is_granted_by_a_rule_with_exactly_it_and_its_port(
    own: tuple[str, str, str], what: str, expected: bool
) -> None:
    assert grants(family(custom(own)), GRANDPARENT, what) == expected


def test_a_rule_that_asks_about_an_address_grants_it_once_a_person_agreed() -> None:
    authorizer = family(custom(("ask", "domains", "10.0.0.5:80")))

    assert not grants(authorizer, GRANDPARENT, "http://10.0.0.5/")
    assert grants(authorizer, GRANDPARENT, "http://10.0.0.5/", approved=True)


@each_row(
    "lines",
    [
        [("allow", "domains", "*:*"), ("allow", "domains", "8.8.8.8:443")],
        [("ask", "domains", "*:*"), ("ask", "domains", "8.8.8.8:443")],
        [("ask", "domains", "*:*"), ("allow", "domains", "8.8.8.8:443")],
    ],
)
def test_a_rule_for_an_address_grants_it_beside_a_wider_one(lines: list[tuple[str, str, str]]) -> None:
    assert grants(family(custom(*lines)), GRANDPARENT, "https://8.8.8.8/", approved=True)
    assert not grants(family(custom(lines[0])), GRANDPARENT, "https://8.8.8.8/", approved=True)


def test_an_address_is_granted_only_if_every_set_above_grants_it() -> None:
    granting, level = custom(("allow", "domains", "10.0.0.5:80")), LEVELS["unrestricted"]

    assert grants(family(granting, granting), PARENT, "CONNECT 10.0.0.5:80")
    assert not grants(family(LEVELS["standard"], granting), PARENT, "CONNECT 10.0.0.5:80")
    assert not grants(family(level, granting), PARENT, "CONNECT 10.0.0.5:80")  # a level has no address to pass on
    assert not grants(family(level), GRANDPARENT, "CONNECT 10.0.0.5:80")


def test_the_operator_gives_and_grants_an_address_without_a_rule_of_its_own() -> None:
    authorizer = family(LEVELS["sandboxed"])
    authorizer.replace_set(GRANDPARENT, custom(("allow", "domains", "10.0.0.5:80")), OPERATOR)

    assert grants(authorizer, GRANDPARENT, "CONNECT 10.0.0.5:80")
    assert not grants(authorizer, OPERATOR, "CONNECT 10.0.0.5:80")


@each_row(
    ("own", "what", "why"),
    [
        (("allow", "domains", "GET a.b/x/**"), "CONNECT a.b:443", "'GET a.b/x/\\*\\*' allows no tunnel"),
        (("allow", "domains", "a.b/x/**"), "https://a.b/x/../y", "'a.b/x/\\*\\*' matches no path with"),
        (("allow", "domains", "*:*"), "http://169.254.169.254/latest", "metadata.*only a rule for 169.254.169.254:80"),
        (("allow", "domains", "*"), "http://[::1]:8080/", "loopback: only a rule for \\[::1\\]:8080 allows it"),
        (
            ("allow", "domains", "a.b"),
            "CONNECT a.b:22",
            "no rule of here allows it. This rule would: domains = ..a.b:22..$",
        ),
    ],
)
def test_a_refused_destination_says_what_would_allow_it(own: tuple[str, str, str], what: str, why: str) -> None:
    authorizer = family(custom(own))

    with pytest.raises(PermissionDenied, match=why):
        require_right(caller(authorizer, GRANDPARENT), Right("http", parse_destination(what)))


def test_a_set_without_rules_for_domains_says_that_it_has_none() -> None:
    authorizer = family(LEVELS["sandboxed"])

    with pytest.raises(PermissionDenied, match=r"no rule of level sandboxed allows it; it has no rules for domains$"):
        require_right(caller(authorizer, GRANDPARENT), Right("http", parse_destination("https://a.b/")))


def with_secrets(*names: str, level: str = "sandboxed") -> PermissionSet:
    return PermissionSet("here", LEVELS[level].rules, level, secrets=names)


def of_family(*own: PermissionSet) -> PermissionAuthorizer:
    """As :func:`family`, with a caller at the top that is the operator."""
    authorizer = family()
    authorizer.add_caller(OPERATOR, LEVELS["unrestricted"], NAMES, is_operator=True)
    for number, one in zip((GRANDPARENT, PARENT, CHILD, BELOW), own, strict=False):
        authorizer.add_caller(number, one, NAMES, PARENTS[number])
    return authorizer


def test_a_child_gets_no_secret_that_its_parent_does_not_hold() -> None:
    authorizer = of_family(with_secrets("a", "b"), with_secrets("b", "c"), with_secrets("a", "b", "c"))

    held = [authorizer.permissions_of(number).secrets() for number in (GRANDPARENT, PARENT, CHILD)]

    assert held == [{"a", "b"}, {"b"}, {"b"}]


@each_row("level", LEVELS)
def test_no_level_has_a_secret_or_passes_one_on(level: str) -> None:
    authorizer = of_family(LEVELS[level], with_secrets("a", level=level))

    assert not authorizer.permissions_of(GRANDPARENT).secrets()
    assert not authorizer.permissions_of(PARENT).secrets()
    with pytest.raises(PermissionDenied, match=r"permissions\.secrets: you can't grant the secret a"):
        authorizer.check_not_wider(with_secrets("a"), GRANDPARENT, "permissions")


def test_the_operator_gives_any_secret_and_holds_none() -> None:
    authorizer = of_family(with_secrets("a", level="unrestricted"))

    authorizer.check_not_wider(with_secrets("z"), OPERATOR, "permissions")
    assert not authorizer.permissions_of(OPERATOR).secrets()
    assert authorizer.permissions_of(GRANDPARENT).secrets() == {"a"}


def test_a_guest_that_narrowed_itself_does_not_get_back_what_the_operator_may_give() -> None:
    authorizer = of_family()

    authorizer.add_layer(OPERATOR, with_secrets("a", level="unrestricted"))
    assert authorizer.permissions_of(OPERATOR).secrets() == {"a"}
    with pytest.raises(PermissionDenied, match="secret b"):
        authorizer.check_narrower(with_secrets("a", "b"), OPERATOR, "permissions")
    authorizer.add_layer(OPERATOR, with_secrets("a", "b", level="readonly"))

    assert authorizer.permissions_of(OPERATOR).secrets() == {"a"}


def test_a_set_that_another_agent_gave_has_no_secret_that_the_giver_lacks() -> None:
    authorizer = of_family(with_secrets("a"), with_secrets("a"))
    authorizer.add_caller(STRANGER, with_secrets("b"), NAMES, OPERATOR)

    authorizer.replace_set(PARENT, with_secrets("a", "b"), STRANGER)
    assert not authorizer.permissions_of(PARENT).secrets()
    authorizer.replace_set(PARENT, with_secrets("a", "b"), OPERATOR)

    assert authorizer.permissions_of(PARENT).secrets() == {"a"}
