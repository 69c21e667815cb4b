from hypothesis import given
from hypothesis import strategies as st

from agentos.kernel.ports import Right
from agentos.permissions.rule import EFFECTS, KIND_OF_ACTION, PermissionSet, Rule
from agentos.permissions.rules import AgentRelation, Rules, parse_pattern
from agentos.permissions.sets.examples import parse_example
from tests.permissions.strategies import NAMES, objects, rules, sets
from tests.support.runs.rows import each_row


def made(*lines: tuple[str, str, str]) -> Rules:
    """Rules out of ``("allow", "read", "/data/**")``."""
    written = tuple(Rule(effect, kind, text, "here") for effect, kind, text in lines)  # type: ignore[arg-type]
    return Rules(PermissionSet("here", written), NAMES)


def effect(found: Rules, text: str) -> str:
    right, relation = parse_example(text, NAMES)
    return found.decide(right, relation).effect


def test_what_no_rule_speaks_of_is_denied() -> None:
    decision = made().decide(Right("read", "/data/x"))

    assert (decision.effect, decision.rule) == ("deny", "no rule (here)")


def test_deny_comes_before_ask_and_ask_before_allow_wherever_they_stand() -> None:
    found = made(
        ("allow", "read", "/data/**"),
        ("ask", "read", "/data/b/**"),
        ("deny", "read", "/data/b/c"),
        ("allow", "calls", "*"),
    )

    assert [effect(found, f"READ /data/{path}") for path in ("a", "b/a", "b/c", "b/c/d")] == [
        *("allow", "ask", "deny", "deny")
    ]


def test_a_grant_of_something_grants_the_call_for_it_and_for_nothing_else() -> None:
    found = made(("allow", "read", "/data/**"), ("ask", "commands", "git *"))

    assert effect(found, "READ /data/x") == "allow"
    assert effect(found, "READ /etc/x") == "deny"
    assert effect(found, "EXEC git status") == "ask"
    assert found.decide_call("exec").effect == "allow"  # what it runs decides
    assert found.decide_call("write").effect == "deny"


def test_a_denied_call_is_denied_whatever_it_is_done_to() -> None:
    found = made(("allow", "read", "/data/**"), ("deny", "calls", "READ"))

    assert effect(found, "READ /data/x") == "deny"
    assert found.decide_call("read").rule == "deny calls READ (here)"


def test_a_call_that_a_person_has_to_agree_to_is_asked_about_although_its_object_is_granted() -> None:
    found = made(("allow", "read", "/data/**"), ("ask", "calls", "READ"))

    assert effect(found, "READ /data/x") == "ask"
    assert effect(found, "READ /etc/x") == "deny"


def test_the_right_to_think_covers_every_model_where_no_rule_is_about_models() -> None:
    assert effect(made(("allow", "calls", "THINK")), "THINK llama") == "allow"
    assert effect(made(("allow", "calls", "THINK"), ("allow", "models", "gemini-*")), "THINK llama") == "deny"
    assert effect(made(("allow", "models", "gemini-*")), "THINK gemini-2") == "allow"
    assert effect(made(("allow", "calls", "THINK"), ("deny", "models", "llama")), "THINK llama") == "deny"


@each_row("asked", ["big", "Big", "big@latest", "BIG:free", "other", "Other:1"])
def test_a_denied_or_asked_model_is_so_in_any_spelling(asked: str) -> None:
    of_all = ("allow", "models", "*")
    assert effect(made(of_all, ("deny", "models", "big"), ("deny", "models", "OTHER")), f"THINK {asked}") == "deny"
    assert effect(made(of_all, ("ask", "models", "big"), ("ask", "models", "OTHER")), f"THINK {asked}") == "ask"
    assert effect(made(("allow", "models", "bi")), f"THINK {asked}") == "deny"
    exact = made(("allow", "models", "big"), ("allow", "models", "other"))
    assert effect(exact, f"THINK {asked}") == ("allow" if asked in ("big", "other") else "deny")


def test_relations_are_to_the_holder_of_the_set() -> None:
    found = made(("allow", "send", "${parent}"), ("allow", "calls", "KILL"), ("allow", "agents", "${own}"))

    assert effect(found, "SEND ${parent}") == "allow"
    assert effect(found, "SEND bob") == "deny"
    assert effect(found, "KILL ${own}") == "allow"
    assert effect(found, "KILL bob") == "deny"
    assert found.decide(Right("kill", agent=3), AgentRelation("me", itself=True)).effect == "allow"


def test_agents_can_be_granted_by_name() -> None:
    found = made(("allow", "calls", "KILL"), ("allow", "agents", "w-*"), ("deny", "agents", "w-1"))

    assert [effect(found, f"KILL {name}") for name in ("w-2", "w-1", "bob")] == ["allow", "deny", "deny"]


def test_what_is_asked_otherwise_is_asked_where_no_other_rule_speaks() -> None:
    level = (Rule("ask", "domains", "*", "the level", fallback=True), Rule("allow", "calls", "HTTP", "the level"))
    own = (Rule("allow", "domains", "*.example.com", "here"), Rule("deny", "domains", "evil.example.com", "here"))
    found = Rules(PermissionSet("here", (*level, *own)), NAMES)

    assert [effect(found, f"HTTP {host}") for host in ("api.example.com", "evil.example.com", "example.org")] == [
        *("allow", "deny", "ask")
    ]


@each_row(
    ("line", "expected"),
    [
        ("git status", "allow"),
        ("git status; rm x", "deny"),
        ("git status && git push", "ask"),
        ("git status $(rm x)", "deny"),
        ("cat < /data/x", "allow"),
        ("cat < /etc/passwd", "deny"),
        ("git log > /data/out", "deny"),
        ("git log > /dev/null", "allow"),
        ("cat /etc/passwd", "allow"),  # what a program opens by itself is for the jail
    ],
)
def test_every_part_of_a_command_has_to_pass(line: str, expected: str) -> None:
    found = made(
        *(("allow", "commands", text) for text in ("git *", "cat *")),
        ("ask", "commands", "git push *"),
        ("allow", "read", "/data/**"),
    )

    assert effect(found, f"EXEC {line}") == expected


@given(sets, objects.filter(lambda right: right.action in ("read", "write", "http")))
def test_the_strongest_rule_that_means_it_decides_and_without_one_it_is_denied(
    one: PermissionSet, right: Right
) -> None:
    kind = KIND_OF_ACTION[right.action]
    speaking = [
        rule
        for rule in one.rules
        if rule.kind == kind and parse_pattern(kind, rule.text, NAMES).matches(right.object, deny=rule.effect == "deny")
    ]
    strongest = min(speaking, key=lambda rule: (rule.fallback, EFFECTS.index(rule.effect)), default=None)
    call = Rules(one, NAMES).decide_call(right.action).effect

    decision = Rules(one, NAMES).decide(right)

    assert decision.effect == min(call, strongest.effect if strongest is not None else "deny", key=EFFECTS.index)


@given(sets, rules.filter(lambda rule: rule.effect == "deny"), objects)
def test_a_denial_more_never_grants_anything(one: PermissionSet, denial: Rule, right: Right) -> None:
    more = PermissionSet(one.name, (*one.rules, denial), one.level)

    before, after = Rules(one, NAMES).decide(right), Rules(more, NAMES).decide(right)

    assert EFFECTS.index(after.effect) <= EFFECTS.index(before.effect) or _models_became_spoken_of(one, denial)


def _models_became_spoken_of(one: PermissionSet, denial: Rule) -> bool:
    return denial.kind == "models" and not any(rule.kind == "models" for rule in one.rules)


@given(sets, objects, st.booleans())
def test_no_decision_names_a_rule_that_is_not_there(one: PermissionSet, right: Right, again: bool) -> None:
    found = Rules(one, NAMES)
    decision = found.decide(right)

    known = {str(rule) for rule in one.rules} | {f"no rule ({one.name})", ""}
    assert decision.rule in known
    assert found.decide(right) == decision
