"""A rule index finds the rule that asking one after the other would find."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.kernel.ports import Effect
from agentos.permissions.patterns.base import Pattern
from agentos.permissions.rule import Kind, Rule
from agentos.permissions.rule_index import RULES_PER_REGEX, RuleIndex
from agentos.permissions.rules import parse_pattern
from agentos.services.http.destination import parse_destination
from agentos.shell.reader import parse_text
from agentos.shell.reading import Command, Word
from tests.permissions.strategies import DESTINATIONS, NAMES, PATHS, TEXTS

PROGRAMS = ("git status", "git *", "ls", "./ls -l", "/bin/ls *", "g* status", "*", "l? *", "rm *")
LINES = (
    "git status",
    "git status -s",
    "ls",
    "/bin/ls",
    "/bin/ls -l",
    "./ls -l",
    "$x status",
    "rm -r a",
    "la b",
)
SIMPLES = (*(parse_text(line).commands[0] for line in LINES), Command((Word("ls", "ls", several=True),)))
PATTERNS = (
    *TEXTS["read"],
    ".env",
    "**/notes/*.md",
    "/home/*/x",
    "*.key",
    ".env.[!a]*",
    "[.]*",
    "a.*/",
    r"\*.md",
    "*-x.*.c",
)
MORE_PATHS = ("/a/.env/b", "/", "/b/c.key", "/.env.b/c", "/a.b", "/a.b/c", "/*.md", "/a-x.b.c", "//a.b.c")
THINGS: dict[Kind, tuple[Sequence[str], Sequence[object]]] = {
    "read": (PATTERNS, (*PATHS, *MORE_PATHS, "/a" * 3000)),
    "commands": (PROGRAMS, SIMPLES),
    "models": (
        ("*", "gemini-*", "g?m*", "a|b", "[a-c]x"),
        ("gemini-2", "Gem:1", "gem", "a", "A|b", "bx", "BX@latest", "x" * 2000, ""),
    ),
    "domains": (TEXTS["domains"], [parse_destination(text) for text in DESTINATIONS]),
}


def one_by_one(rules: Sequence[tuple[Rule, Pattern]], what: object, deny: bool) -> Rule | None:
    return next((rule for rule, pattern in rules if pattern.matches(what, deny=deny)), None)


@pytest.mark.parametrize("kind", THINGS)
@given(data=st.data())
def test_it_finds_the_first_that_means_it(kind: Kind, data: st.DataObject) -> None:
    texts, things = THINGS[kind]
    effect: Effect = data.draw(st.sampled_from(("deny", "allow")))
    chosen = data.draw(st.lists(st.sampled_from(texts), max_size=3 * RULES_PER_REGEX))
    rules = [
        (Rule(effect, kind, text, f"line {at}"), parse_pattern(kind, text, NAMES)) for at, text in enumerate(chosen)
    ]

    index = RuleIndex(kind, effect == "deny", rules)

    for what in things:
        assert index.find(what) == one_by_one(rules, what, effect == "deny")


def test_a_grant_of_everything_is_found_wherever_it_stands() -> None:
    texts = ("git status", "ls", "*", "rm *")
    rules = [(Rule("allow", "commands", text, ""), parse_pattern("commands", text, NAMES)) for text in texts]

    assert RuleIndex("commands", False, rules).universal == rules[2][0]
    assert RuleIndex("commands", False, rules[:2]).universal is None
