"""Suggested rules allow what was approved and used, and nothing beside it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.kernel.ports import Right
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.patterns.base import Names
from agentos.permissions.set_examples import decide_by_set, parse_example
from agentos.permissions.set_files import read_set
from agentos.permissions.suggestion import Suggestion, Use, suggest_rules
from agentos.shell.reader import parse_text

NAMES = Names("/home/ada", "/etc/agentos", "/workspace", "/agent")

USES = (
    Use("READ", "/data/notes.md"),
    Use("WRITE", "/workspace/a b.txt"),
    Use("EXEC", "git push origin main"),
    Use("EXEC", "git add 'a b' && git commit -m 'x; y' > /dev/null"),
    Use("EXEC", "echo done > /data/log"),
    Use("THINK", "gemini-2.0-flash"),
    Use("SEND", "bob"),
)
OTHERS = (
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


@pytest.mark.parametrize(
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
