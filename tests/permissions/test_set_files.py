from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentos.kernel.ports import Right
from agentos.permissions import unreachable_rules
from agentos.permissions.levels import LEVELS
from agentos.permissions.rule import PermissionSet
from agentos.permissions.rules import Rules
from agentos.permissions.sets.files import BadSet, describe_set, describe_whole_set, read_set
from agentos.permissions.sets.schema import LimitsTable
from agentos.services.quotas import MONEY_UNITS, Quota
from agentos_sdk.encoding.codec import path
from agentos_sdk.values import Limits
from tests.permissions.strategies import NAMES, objects
from tests.permissions.tables import tables
from tests.support.runs.rows import each_row

WHOLE: dict[str, Any] = {
    "level": "readonly",
    "allow": {
        "calls": ["THINK", "KILL"],
        "read": ["/data/**"],
        "write": ["/data/out/**"],
        "commands": ["git *"],
        "domains": ["*.example.com"],
        "models": ["gemini-*"],
        "send": ["bob"],
        "agents": ["${own}", "w-*"],
    },
    "ask": {"commands": ["git push *"]},
    "deny": {"read": ["/data/private/"]},
    "spawn": {"limits": {"memory": "64M", "max_pids": 16, "cpu_quota": "33%"}},
    "quotas": [{"tokens": 10000, "calls": 50, "per": "1h"}, {"money": 1.5, "per": "1d"}],
    "examples": {
        "allow": ["READ /data/x", "EXEC git status", "THINK gemini-3", "SEND bob", "KILL w-1", "READ ${workspace}/x"],
        "ask": ["EXEC git push origin"],
        "deny": ["READ /data/private/x", "WRITE /data/x", "EXEC git status; ls", "HTTP example.org", "STORE"],
    },
}


KEYS = ("level", "allow", "ask", "deny", "read", "calls", "spawn", "limits", "quotas", "per", "examples")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def read(data: object) -> PermissionSet:
    return read_set(data, "permissions.here", {}, NAMES)


def wrong(data: object) -> list[str]:
    with pytest.raises(BadSet) as caught:
        read(data)
    return [f"{path(keys, 'permissions')}: {message}" for keys, message in caught.value.mistakes]


def good(table: object) -> PermissionSet:
    """The set, in a property that is about those without a mistake."""
    try:
        return read(table)
    except BadSet:
        assume(False)
        raise


def test_a_whole_set_is_read() -> None:
    found = read(WHOLE)

    assert found.level == "readonly"
    assert found.limits == (("memory", 64 << 20), ("max_pids", 16), ("cpu_quota", 0.33))
    assert found.quotas == (
        Quota("calls", 50, 3600.0),
        Quota("tokens", 10000, 3600.0),
        Quota("money", MONEY_UNITS * 3 // 2, 86400.0),
    )
    decision = Rules(found, NAMES).decide(Right("read", "/data/x"))
    assert (decision.effect, decision.rule) == ("allow", "allow read /data/** (permissions.here)")


def test_what_is_shown_is_what_is_read_without_its_examples() -> None:
    said = {name: value for name, value in WHOLE.items() if name not in ("examples", "spawn", "quotas")}

    assert describe_set(read(WHOLE)) == said | {
        "spawn": {"limits": {"memory": 64 << 20, "max_pids": 16, "cpu_quota": 33000.0}},
        "quotas": [{"calls": 50, "tokens": 10000, "per": 3600.0}, {"money": 1.5, "per": 86400.0}],
    }


@given(tables)
def test_what_is_shown_can_be_read_again(table: dict[str, Any]) -> None:
    found = good(table)

    assert read(describe_set(found)) == found


@given(tables, objects)
def test_a_set_decides_the_same_after_it_was_shown_and_read(table: dict[str, Any], right: Right) -> None:
    found = good(table)

    assert Rules(read(describe_set(found)), NAMES).decide(right) == Rules(found, NAMES).decide(right)


@each_row("level", LEVELS)
def test_a_level_by_its_name_or_with_nothing_added_is_that_level(level: str) -> None:
    assert read(level) is read({"level": level}) is read(describe_set(LEVELS[level])) is LEVELS[level]


def test_a_set_can_be_named() -> None:
    known = {"mine": read(WHOLE)}

    assert read_set("mine", "here", known, NAMES) is known["mine"]
    with pytest.raises(BadSet, match=r"no level or permission set is called 'mien', did you mean mine\?"):
        read_set("mien", "here", known, NAMES)


def test_without_a_level_there_is_little_but_what_is_said() -> None:
    found = Rules(read({}), NAMES)

    assert [name for name in ("noop", "recv", "exit", "get_perms") if found.decide_call(name).effect != "allow"] == []
    assert found.decide_call("send").effect == "deny"
    assert found.decide_call("list").effect == "deny"


def test_whole_spells_out_what_the_level_says() -> None:
    assert describe_set(LEVELS["minimal"]) == {"level": "minimal"}
    assert describe_whole_set(LEVELS["minimal"])["allow"]["send"] == ["${parent}"]


@each_row(
    ("data", "said"),
    [
        (7, "permissions: expected keys and values, got 7"),
        ({"levl": "minimal"}, "permissions.levl: unknown field, did you mean level?"),
        ({"level": "sandbox"}, "permissions.level: no level is called 'sandbox', did you mean sandboxed?"),
        ({"allow": {"raed": []}}, "permissions.allow.raed: unknown field, did you mean read?"),
        ({"allow": {"read": "/data"}}, "permissions.allow.read: expected an array, got '/data'"),
        ({"allow": {"calls": ["THNK"]}}, "permissions.allow.calls[0]: no call is named 'THNK', did you mean THINK?"),
        ({"allow": {"calls": ["think"]}}, "permissions.allow.calls[0]: no call is named 'think', did you mean THINK?"),
        (
            {"allow": {"send": ["${parents}"]}},
            "permissions.allow.send[0]: '${parents}' can never match: expected a pattern of names, or",
        ),
        (
            {"allow": {"events": ["${own}"]}},
            "permissions.allow.events[0]: '${own}' can never match: expected a pattern of names",
        ),
        ({"ask": {"events": ["bob"]}}, "permissions.ask.events[0]: a person can't be asked about each event"),
        (
            {"spawn": {"limits": {"memory": "lots"}}},
            "permissions.spawn.limits.memory: expected a size such as 256M, got 'lots'",
        ),
        ({"spawn": {"limit": {}}}, "permissions.spawn.limit: unknown field, did you mean limits?"),
        (
            {"quotas": [{"per": "1h"}]},
            "permissions.quotas[0]: expected at least one of tokens, calls, money, http_requests and http_bytes",
        ),
        (
            {"quotas": [{"calls": 1, "per": "1h"}, {"calls": 2, "per": "60m"}]},
            "permissions.quotas[1].calls: there is a quota of calls per 3600 s already",
        ),
        ({"allow": {"read": ["x" * 1001]}}, "permissions.allow.read[0]: expected at most 1000 characters"),
        ({"examples": {"allow": ["LIST"] * 101}}, "permissions.examples.allow: expected at most 100"),
        ({"examples": {"allow": ["LOOK /x"]}}, "permissions.examples.allow[0]: no call is named 'LOOK'"),
        ({"examples": {"allow": ["READ"]}}, "permissions.examples.allow[0]: READ: expected an example"),
        ({"examples": {"allow": ["READ notes.md"]}}, "permissions.examples.allow[0]: 'notes.md': expected an absolute"),
        ({"examples": {"allow": ["HTTP :"]}}, "permissions.examples.allow[0]: ':': "),
        ({"examples": {"allow": ["EXEC if"]}}, "permissions.examples.allow[0]: 'EXEC if' is denied: "),
    ],
)
def test_a_mistake_is_told_with_its_place(data: object, said: str) -> None:
    [found] = wrong(data)

    assert found.startswith(said)


def test_all_mistakes_are_told_at_once() -> None:
    found = wrong(
        {
            "level": "none",
            "allow": {"read": ["data/x", "/data/**", "/data/x"], "calls": ["LOOK"]},
            "quotas": [{"per": "1h"}],
        }
    )

    assert [line.split(": ")[0].removeprefix("permissions.") for line in found] == [
        *("level", "allow.calls[0]", "allow.read[0]", "quotas[0]", "allow.read[2]")
    ]


def test_a_thousand_rules_are_enough() -> None:
    assert wrong({"allow": {"models": [f"m{number}" for number in range(1001)]}}) == [
        "permissions: expected at most 1000 rules, got 1001"
    ]
    assert wrong({"deny": {"models": [f"{number:<999}." for number in range(66)]}}) == [
        "permissions: expected at most 65536 characters of patterns, got 66000"
    ]


@each_row(
    ("data", "said"),
    [
        (
            {"allow": {"read": ["/data/**", "/data/x"]}},
            "allow.read[1]: '/data/x' has no effect: allow.read[0] '/data/**' allows all of it already",
        ),
        (
            {"allow": {"read": ["/data/x", "/data/**"]}},
            "allow.read[0]: '/data/x' has no effect: allow.read[1] '/data/**' allows all of it already",
        ),
        (
            {"allow": {"models": ["m", "m"]}},
            "allow.models[1]: 'm' has no effect: allow.models[0] 'm' allows all of it already",
        ),
        (
            {"allow": {"read": ["/data/x"]}, "deny": {"read": ["/data/"]}},
            "allow.read[0]: '/data/x' has no effect: deny.read[0] '/data/' denies all of it",
        ),
        (
            {"ask": {"read": ["/data/x"]}, "deny": {"read": ["/data/**"]}},
            "ask.read[0]: '/data/x' has no effect: deny.read[0] '/data/**' denies all of it",
        ),
        (
            {"allow": {"commands": ["git push *"]}, "ask": {"commands": ["git *"]}},
            "allow.commands[0]: 'git push *' has no effect: ask.commands[0] 'git *' asks about all of it",
        ),
        (
            {"deny": {"domains": ["*", "example.com"]}},
            "deny.domains[1]: 'example.com' has no effect: deny.domains[0] '*' denies all of it already",
        ),
        (
            {"ask": {"domains": ["*.example.com", "api.example.com"]}},
            "ask.domains[1]: 'api.example.com' has no effect: ask.domains[0] '*.example.com' asks about all of it",
        ),
        (
            {"allow": {"domains": ["GET a.b/x/y", "GET,POST a.b/x/**"]}},
            "allow.domains[0]: 'GET a.b/x/y' has no effect: allow.domains[1] 'GET,POST a.b/x/**' allows all of it",
        ),
        (
            {"allow": {"domains": ["a.b/x/**"]}, "deny": {"domains": ["a.b"]}},
            "allow.domains[0]: 'a.b/x/**' has no effect: deny.domains[0] 'a.b' denies all of it",
        ),
        (
            {"level": "unrestricted", "allow": {"domains": ["a.b:22"]}},
            "allow.domains[0]: 'a.b:22' has no effect: level unrestricted '*:*' allows all of it already",
        ),
        (
            {"level": "sandboxed", "allow": {"commands": ["git *"]}},
            "allow.commands[0]: 'git *' has no effect: level sandboxed '*' allows all of it already",
        ),
        (
            {"level": "sandboxed", "allow": {"send": ["${own}"]}},
            "allow.send[0]: '${own}' has no effect: level sandboxed '${own}' allows all of it already",
        ),
        (
            {"allow": {"read": ["~/.ssh/id_ed25519"]}},
            "allow.read[0]: '~/.ssh/id_ed25519' has no effect: default denial '.ssh/' denies all of it",
        ),
        (
            {"allow": {"commands": ["sudo ls"]}},
            "allow.commands[0]: 'sudo ls' has no effect: no caller may run it: becoming another user",
        ),
        (
            {"allow": {"commands": ["env *"]}},
            "allow.commands[0]: 'env *' has no effect: `env`, which runs its arguments: only '*' allows that",
        ),
        (
            {"allow": {"commands": ["export A=1"]}},
            "allow.commands[0]: 'export A=1' has no effect: the builtin `export`: only '*' allows that",
        ),
        (
            {"allow": {"commands": ["git *"]}, "deny": {"calls": ["EXEC"]}},
            "allow.commands[0]: 'git *' has no effect: deny.calls[0] 'EXEC' denies EXEC",
        ),
        (
            {"allow": {"calls": ["EXEC"]}},
            "allow.calls[0]: 'EXEC' has no effect: EXEC needs rules of commands too, such as allow.commands",
        ),
    ],
)
def test_a_rule_without_effect_is_a_mistake_that_names_the_other(data: object, said: str) -> None:
    [found] = wrong(data)

    assert found.startswith(f"permissions.{said}")


@each_row(
    "data",
    [
        {"allow": {"read": ["/data/**"]}, "deny": {"read": ["/data/private/"]}},
        {"allow": {"read": ["/data/**"]}, "ask": {"read": ["/data/private/**"]}},
        {"level": "sandboxed", "deny": {"commands": ["curl *"]}},
        {"level": "sandboxed", "ask": {"send": ["bob"]}},
        {"level": "standard", "allow": {"domains": ["*.example.com"]}, "ask": {"domains": ["a.example.com"]}},
        {"deny": {"read": [".env"]}},  # denied to everybody already, and here even if that changes
        {"allow": {"calls": ["READ", "THINK"], "read": ["/data/**"]}},
        {"allow": {"send": ["${parent}", "bob"]}},
        {"level": "unrestricted", "deny": {"calls": ["SET_AUDIT_CONFIG"]}},
    ],
)
def test_what_carves_out_of_a_grant_has_an_effect(data: dict[str, Any]) -> None:
    assert read(data).rules


@each_row("what", ["203.0.113.9:443", "8.8.8.8:53", "GET 203.0.113.9:443/x/**", "[2001:4860::8]:443", "127.0.0.1:80"])
@each_row(
    "wide",
    [
        {"allow": {"domains": ["*:*"]}},
        {"allow": {"domains": ["*"]}},
        {"ask": {"domains": ["*:*"]}},
        {"level": "unrestricted"},
        {"level": "standard"},
        {"allow": {"domains": ["203.0.113.9:*", "[2001:4860::8]", "8.8.8.8:*"]}},
    ],
)
@pytest.mark.parametrize("effect", ["allow", "ask"])
def test_a_rule_for_an_address_and_port_has_an_effect_beside_wider_ones(
    effect: str, wide: dict[str, Any], what: str
) -> None:
    """It grants the address where that is the host's own, as a refusal says."""
    given = {key: dict(value) if isinstance(value, dict) else value for key, value in wide.items()}
    domains = given.setdefault(effect, {})
    domains["domains"] = [*domains.get("domains", ()), what]

    assert read(given).rules


@each_row(
    ("data", "said"),
    [
        ({"allow": {"domains": ["8.8.8.8:53", "8.8.8.8:53"]}}, "allow.domains[1]: '8.8.8.8:53' has no effect: allow"),
        (
            {"allow": {"domains": ["GET 8.8.8.8:53/x", "8.8.8.8:53"]}},
            "allow.domains[0]: 'GET 8.8.8.8:53/x' has no effect: allow.domains[1] '8.8.8.8:53' allows all of it",
        ),
        (
            {"allow": {"domains": ["8.8.8.8:53"]}, "deny": {"domains": ["*:*"]}},
            "allow.domains[0]: '8.8.8.8:53' has no effect: deny.domains[0] '*:*' denies all of it",
        ),
        (
            {"allow": {"domains": ["8.8.8.8", "*:*"]}},
            "allow.domains[0]: '8.8.8.8' has no effect: allow.domains[1] '*:*' allows all of it",
        ),
        ({"deny": {"domains": ["*:*", "8.8.8.8:53"]}}, "deny.domains[1]: '8.8.8.8:53' has no effect: deny.domains[0]"),
    ],
)
def test_a_rule_for_an_address_that_adds_nothing_is_a_mistake(data: dict[str, Any], said: str) -> None:
    [found] = wrong(data)

    assert found.startswith(f"permissions.{said}")


def test_looking_for_rules_without_effect_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns that are made to take long: what isn't compared in time is overlooked."""
    monkeypatch.setattr(unreachable_rules, "MAX_SECONDS", 0.0)

    assert read({"allow": {"read": ["/" + "*a" * 8 + f"{number}*/**" + "/*b" * 20 for number in range(50)]}}).rules
    assert read({"allow": {"models": ["m", "m"]}}).rules


@each_row(
    ("examples", "said"),
    [
        ({"allow": ["READ /etc/x"]}, "examples.allow[0]: 'READ /etc/x' is denied: READ /etc/x: no rule of"),
        ({"deny": ["READ /data/x"]}, "examples.deny[0]: 'READ /data/x' is allowed: by the rule allow read /data/** ("),
        ({"deny": ["EXEC git push"]}, "examples.deny[0]: 'EXEC git push' needs a person's approval: EXEC git push: a"),
        ({"allow": ["READ /data/.env"]}, "examples.allow[0]: 'READ /data/.env' is denied: READ /data/.env: refused by"),
        ({"allow": ["EXEC git status; rm -rf /"]}, "examples.allow[0]: 'EXEC git status; rm -rf /' is denied: EXEC"),
    ],
)
def test_an_example_that_comes_out_otherwise_is_a_mistake_that_says_by_which_rule(examples: object, said: str) -> None:
    [found] = wrong(
        {"allow": {"read": ["/data/**"], "commands": ["git *"]}, "ask": {"commands": ["git push *"]}}
        | {"examples": examples}
    )

    assert found.startswith(f"permissions.{said}")


def test_a_useless_rule_and_wrong_examples_are_told_at_once() -> None:
    useless, denied, no_path = wrong(
        {
            "allow": {"read": ["/data/**", "/data/x"]},
            "examples": {"allow": ["READ /data/x", "READ /etc/x", "READ notes.md"]},
        }
    )

    assert useless.startswith("permissions.allow.read[1]: ")
    assert denied.startswith("permissions.examples.allow[1]: 'READ /etc/x' is denied: ")
    assert no_path.startswith("permissions.examples.allow[2]: 'notes.md': expected an absolute path")


def test_examples_of_a_set_with_an_unknown_rule_are_checked_for_what_they_say_alone() -> None:
    unknown, no_path = wrong({"allow": {"rad": ["/data/**"]}, "examples": {"allow": ["READ /data/x", "READ notes.md"]}})

    assert unknown.startswith("permissions.allow.rad: unknown field")
    assert no_path.startswith("permissions.examples.allow[1]: 'notes.md': expected an absolute path")


def test_the_limits_of_a_set_are_those_of_an_agent() -> None:
    assert [field.name for field in attrs.fields(LimitsTable)] == [field.name for field in attrs.fields(Limits)]


@given(anything)
def test_whatever_is_given_is_a_set_or_a_mistake(data: object) -> None:
    try:
        assert isinstance(read(data), PermissionSet)
    except BadSet as error:
        assert error.mistakes
        assert error.describe_mistakes("permissions")


@each_row("effect", ["allow", "ask"])
@each_row("text", ["127.0.0.1", "GET 127.0.0.1:*/x/**", "[fd00::1]", "169.254.169.254"])
def test_an_address_that_is_granted_only_with_its_port_has_to_have_one(effect: str, text: str) -> None:
    with pytest.raises(BadSet, match=r"granted only with its port, as in '[0-9\[].*:443'"):
        read_set({effect: {"domains": [text]}}, "here", {}, NAMES)


def test_an_address_can_be_granted_beside_every_host_and_denied_without_a_port() -> None:
    given = {"level": "unrestricted", "allow": {"domains": ["127.0.0.1:80"]}, "deny": {"domains": ["10.0.0.1"]}}

    assert read_set(given, "here", {}, NAMES).level == "unrestricted"
