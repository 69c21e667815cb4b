"""Suggested rules allow what was approved and used, and nothing beside it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.kernel.ports import Entry, Right
from agentos.permissions.approvals.suggestion import COUNTED, Suggestion, Use, find_uses, suggest_rules
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.patterns.base import Names
from agentos.permissions.sets.examples import decide_by_set, parse_example
from agentos.permissions.sets.files import read_set
from agentos.services.audit.chain import CHAIN_START, QueuedEntry, Row, chain_rows
from agentos.shell.reader import parse_text
from tests.support.runs.rows import each_row

NAMES = Names("/home/ada", "/etc/agentos", "/workspace", "/agent")

USES = (
    Use("READ", "/data/notes.md"),
    Use("WRITE", "/workspace/a b.txt"),
    Use("EXEC", "git push origin main"),
    Use("EXEC", "git add 'a b' && git commit -m 'x; y' > /dev/null"),
    Use("EXEC", "echo done > /data/log"),
    Use("THINK", "gemini-2.0-flash"),
    Use("SEND", "bob"),
    Use("HTTP", "POST https://api.example.com/items"),
    Use("TOOL_CALL", "github.search"),
    Use("HTTP", "GET http://127.0.0.1:8080/a/b"),
    Use("HTTP", "GET http://[::1]:8080/"),
    Use("HTTP", "CONNECT github.com:443"),
)
OTHERS = (
    "HTTP GET https://api.example.com/items",
    "HTTP POST https://api.example.com/items/1",
    "HTTP POST https://www.api.example.com/items",
    "HTTP POST http://api.example.com/items",
    "HTTP CONNECT api.example.com:443",
    "HTTP GET http://127.0.0.1:8081/a/b",
    "HTTP GET http://127.0.0.1:8080/a",
    "HTTP CONNECT github.com:22",
    "READ /data/notes",
    "READ /data/notes.md/x",
    "READ /workspace/a b.txt",
    "WRITE /data/notes.md",
    "WRITE /workspace/a",
    "EXEC git push",
    "EXEC git push origin main --force",
    "EXEC git push origin main; ls",
    "EXEC ./git push origin main",
    "EXEC git commit -m x",
    "EXEC echo done > /data/log2",
    "THINK gemini-2",
    "SEND bo",
    "SPAWN",
)


def decide(suggestion: Suggestion, text: str, names: Names = NAMES) -> str:
    """The decision of the suggested set, pasted as it is, about an example."""
    given = read_set(suggestion.as_set(), "the suggestion", {}, names)
    return decide_by_set(given, names, *parse_example(text, names)).effect


def test_the_rules_allow_each_use_and_nothing_beside_it() -> None:
    suggestion = suggest_rules(USES, NAMES)

    assert suggestion.left == []
    assert [decide(suggestion, str(use)) for use in USES] == ["allow"] * len(USES)
    assert [(other, decide(suggestion, other)) for other in OTHERS] == [(other, "deny") for other in OTHERS]


@given(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=30), st.text(max_size=8))
@example("a*", "b")
@example("[a]", "")
@example("**", "x")
@example("${own}", "")
@example("a\\*", "")
def test_a_rule_for_a_path_grants_exactly_that_path(name: str, more: str) -> None:
    path = "/data/" + name.strip("/").replace("//", "/")
    suggestion = suggest_rules([Use("READ", path)], NAMES)
    if suggestion.left:
        return
    given = read_set(suggestion.as_set(), "the suggestion", {}, NAMES)

    assert decide_by_set(given, NAMES, Right("read", path)).effect == "allow"
    for other in (path + more, path + "/x", path.replace("*", "x"), path.replace("[a]", "a"), path.replace("\\", "")):
        if other != path:
            assert decide_by_set(given, NAMES, Right("read", other)).effect == "deny"


@given(st.lists(st.text(st.sampled_from("ab *?'\"\\$;|&<>(){}[]#~=\n"), max_size=6), min_size=1, max_size=4))
def test_a_rule_for_a_command_grants_exactly_its_words(words: list[str]) -> None:
    text = " ".join(words)
    suggestion = suggest_rules([Use("EXEC", text)], NAMES)
    if suggestion.left or not suggestion.as_set():
        return
    given = read_set(suggestion.as_set(), "the suggestion", {}, NAMES)

    def decide_command(line: str) -> str:
        return decide_by_set(given, NAMES, Right("exec", ExecRequest(parse_text(line), "/workspace", True))).effect

    assert decide_command(text) == "allow"
    for command in suggestion.as_set()["allow"].get("commands", ()):
        assert decide_command(f"{command} more") == "deny" or f"{command} more" in text
        assert "*" not in command


@each_row(
    ("use", "why"),
    [
        (Use("EXEC", "for x in a b; do echo $x; done"), "it uses"),
        (Use("EXEC", "cat *.py"), "wildcard"),
        (Use("EXEC", "cat 'a*'"), "wildcard"),
        (Use("EXEC", "echo x > log"), "relative to"),
        (Use("EXEC", "curl -H 'Authorization: [redacted]' https://a.b"), "redacted"),
        (Use("EXEC", "echo a\\nb"), "escaped"),
        (Use("EXEC", "echo " + "a" * 494 + "…"), "cut"),
        (Use("EXEC", "beside worker: ls"), "beside another agent"),
        (Use("READ", "/data/ "), "no pattern"),
        (Use("HTTP", "GET https://a.example.com/x/**"), "all below it"),
        (Use("HTTP", "GET https://a.example.com/x//y"), "never matches"),
    ],
)
def test_what_no_rule_fits_exactly_is_left_out_with_the_reason(use: Use, why: str) -> None:
    suggestion = suggest_rules([use], NAMES)

    assert suggestion.as_set() == {}
    [(left, reason)] = suggestion.left
    assert left == use
    assert why in reason


@pytest.mark.parametrize("use", [Use("READ", "/home/ada/.ssh/id_rsa"), Use("EXEC", "sudo ls"), Use("WRITE", "/x/.env")])
def test_what_default_denials_cover_is_never_suggested(use: Use) -> None:
    assert suggest_rules([use], NAMES).as_set() == {}


def test_uses_of_the_same_object_are_one_rule() -> None:
    suggestion = suggest_rules([Use("READ", "/data/x", times=2), Use("READ", "/data/x")], NAMES)

    assert suggestion.grants == {"read": {"/data/x": 3}}


def make_rows(*entries: Entry) -> list[Row]:
    return chain_rows(CHAIN_START, [QueuedEntry(entry, 0.0) for entry in entries])


def make_entry(call: str, about: str, rule: str, phase: str = "outcome", outcome: str = "ok", **more: object) -> Entry:
    effect = "deny" if rule.startswith("deny") else "ask" if rule.startswith("ask") else "allow"
    outcome = "" if phase == "intent" else outcome
    return Entry(7, "worker", "agent", call, about, effect, rule, phase, outcome, **more)  # type: ignore[arg-type]


def test_uses_are_calls_that_were_approved_and_done() -> None:
    asked = "ask commands git * (permissions.worker)"
    rows = make_rows(
        make_entry("EXEC", "git push", f"approval 3: {asked}", "intent"),
        make_entry("EXEC", "git push (it ran)", f"approval 3: {asked}", intent=1),
        make_entry("EXEC", "git push", f"answer 3: {asked}", "intent"),
        make_entry("EXEC", "git push", f"answer 3: {asked}", intent=3),
        make_entry("EXEC", "git fetch", asked, outcome="approval_required"),
        make_entry("READ", "/data/x", "approval 4: ask read /data/** (permissions.worker)", outcome="not_found"),
        make_entry("READ", "/data/y", "allow read /data/y (permissions.worker)"),
        make_entry("READ", "/etc/shadow", "deny read /etc/shadow* (default denials)", outcome="permission_denied"),
        make_entry("THINK", "gemini-2 (in 3, out 5, cost 0, question sha256:00)", "approval 5: ask models * (x)"),
        make_entry("HTTP", "GET https://a.b/x (200, 12 bytes)", "approval 6: ask domains * (level standard)"),
    )
    rows.append(make_rows(make_entry("READ", "others", "answer 6: ask read * (x)"))[0]._replace(repeated=9))

    assert find_uses(rows) == [
        Use("EXEC", "git push", asked, 2),
        Use("THINK", "gemini-2", "ask models * (x)"),
        Use("HTTP", "GET https://a.b/x", "ask domains * (level standard)"),
        Use("READ", COUNTED, "ask read * (x)", 9),
    ]
    assert suggest_rules(find_uses(rows), NAMES).as_set() == {
        "allow": {"commands": ["git push"], "models": ["gemini-2"], "domains": ["GET a.b:443/x"]}
    }
