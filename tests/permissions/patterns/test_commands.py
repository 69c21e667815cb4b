"""Which commands a pattern means, as a grant and as a denial."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.permissions.patterns.base import BadPattern
from agentos.permissions.patterns.commands import parse_command_pattern
from agentos.shell import reader
from agentos.shell.reading import Command, Word
from tests.support.runs.rows import each_row


def means(pattern: str, command: str, *, deny: bool = False) -> bool:
    return parse_command_pattern(pattern).matches(reader.parse_text(command).commands[0], deny=deny)


@each_row(
    ("pattern", "command"),
    [
        ("git status", "git status"), ("git status", "'git' \"status\""), ("git status", "A=1 git status > f"),
        ("git *", "git"), ("git *", "git a b c"), ("git *", "git $x \"$y\" *.py"),
        ("git diff *", "git diff a"), ("git diff-*", "git diff-index"), ("python3.? x", "python3.1 x"),
        ("echo ?", "echo é"), ("ls '*'", "ls x"), ("*", "anything $at --all"), ("*", "$x"),
        ("git commit -m *", "git commit -m 'a b' c"), ("find . -name '*.py'", "find . -name 'a.py'"),
        ("echo 'a;b'", "echo 'a;b'"), ("[ *", "[ -f x ]"), ("/bin/ls *", "/bin/ls x"), ("echo [ab]", "echo '[ab]'"),
        ("* --version", "python --version"), ("echo a*b*c", "echo 'axxb\nc'"),
    ],
)  # fmt: skip
def test_a_grant_means_what_it_says(pattern: str, command: str) -> None:
    assert means(pattern, command)
    assert means(pattern, command, deny=True), "and so does a denial"


@each_row(
    ("pattern", "command"),
    [
        ("git status", "git status -s"), ("git status", "git"), ("git status", "git diff"), ("git", "git status"),
        ("git *", "./git x"), ("git *", "/usr/bin/git x"), ("git *", "../git"), ("git *", "GIT x"),
        ("git*", "git/x"), ("*sh *", "/tmp/evilsh x"), ("git ?", "git ab"), ("git * x", "git a b x"),
        ("echo [ab]", "echo a"), ("git status *", "git $x"), ("git ?", 'git "$x"'), ("git * x", 'git "$y" x'),
        ("git x", "$y x"), ("* x", "$y x"), ("ls *", "$y"), ("git diff *", "git {diff,push}"),
        ("/bin/*", "/bin/../tmp/x"),
    ],
)  # fmt: skip
def test_a_grant_means_no_more(pattern: str, command: str) -> None:
    assert not means(pattern, command)


@each_row(
    ("pattern", "command"),
    [
        ("git push *", "/usr/bin/git push"), ("git push *", "./git push x"), ("git push *", "git $x"),
        ("git push *", 'git "$x" origin'), ("git push *", "git $x push"), ("git push *", "git p* a"),
        ("git push *", "git {push,x}"), ("rm *", "rm"), ("git push", "$x push"), ("git push *", "$x"),
        ("git push", "git $a $b"), ("git push *", "git $none push origin"),
    ],
)  # fmt: skip
def test_a_denial_means_whatever_may_come_to_it(pattern: str, command: str) -> None:
    assert means(pattern, command, deny=True)


@each_row(
    ("pattern", "command"),
    [
        ("git push *", "git add $x"), ("git push", 'git push "$x"'),
        ("git push", '"$x"'), ("git push *", "echo git push"),
        ("rm -rf *", "rm x $y"), ("git push x", 'git "$x"'),
    ],
)  # fmt: skip
def test_a_denial_means_nothing_that_can_not(pattern: str, command: str) -> None:
    assert not means(pattern, command, deny=True)


@each_row(
    ("text", "why"),
    [
        ("", "empty"), ("  ", "empty"), ("git 'status", "quote"), ("ls; rm", "';'"), ("ls | grep x", "'|'"),
        ("echo $x", r"'\$'"), ("echo `x`", "'`'"), ("a && b", "'&'"), ("a > f", "'>'"), ("(a)", r"'\('"),
        ("A=1 b", "variables"), ("'' a", "name"), ("a\nb", "simple command"), ("a\0", "name"),
    ],
)  # fmt: skip
def test_a_pattern_that_can_never_match_is_an_error(text: str, why: str) -> None:
    with pytest.raises(BadPattern, match=why):
        parse_command_pattern(text)


@each_row(
    ("wide", "narrow"),
    [
        ("*", "git *"), ("*", "*"), ("git *", "git status"), ("git *", "git status *"), ("git *", "git *"),
        ("git d* *", "git diff x *"), ("git *", "git"), ("echo ?", "echo a"), ("echo *x*", "echo axb"),
        ("py* *", "python *"), ("git a* b", "git a*c b"),
    ],
)  # fmt: skip
def test_a_pattern_covers_a_narrower_one(wide: str, narrow: str) -> None:
    assert parse_command_pattern(wide).covers(parse_command_pattern(narrow), deny=False)
    assert parse_command_pattern(wide).covers(parse_command_pattern(narrow), deny=True)


@each_row(
    ("one", "other"),
    [
        ("git *", "*"), ("git status", "git *"), ("git status *", "git *"), ("git status", "git diff"),
        ("git", "git x"), ("echo ?", "echo *"), ("echo a*", "echo *"), ("git *", "/bin/git *"),
        ("*sh *", "/bin/sh *"),
        ("git status", "git status *"), ("ls", "git"),
    ],
)  # fmt: skip
def test_a_pattern_covers_nothing_wider(one: str, other: str) -> None:
    assert not parse_command_pattern(one).covers(parse_command_pattern(other), deny=False)


def test_a_denial_covers_the_program_wherever_it_lies() -> None:
    assert parse_command_pattern("git *").covers(parse_command_pattern("/usr/bin/git push *"), deny=True)


PARTS = st.sampled_from(["a", "b", "*", "?", "a*", "*b", "/a", "/b/a", "?b", "a?"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=3).map(" ".join)
VALUES = st.sampled_from(["a", "b", "ab", "/a", "/b/a", "aab", "", "x/b"])


@given(PATTERNS, PATTERNS, st.lists(VALUES, min_size=1, max_size=4), st.booleans())
def test_what_is_covered_is_matched(wide: str, narrow: str, words: list[str], deny: bool) -> None:
    command = Command(tuple(Word(text, text) for text in words))

    if parse_command_pattern(wide).covers(parse_command_pattern(narrow), deny=deny) and parse_command_pattern(
        narrow
    ).matches(command, deny=False):
        assert parse_command_pattern(wide).matches(command, deny=deny)


@given(PATTERNS, st.lists(VALUES, min_size=1, max_size=4))
def test_a_denial_means_all_that_a_grant_does(pattern: str, words: list[str]) -> None:
    command = Command(tuple(Word(text, text) for text in words))

    if parse_command_pattern(pattern).matches(command, deny=False):
        assert parse_command_pattern(pattern).matches(command, deny=True)


def test_a_pattern_full_of_wildcards_is_matched_at_once() -> None:
    [command] = reader.parse_words(["echo", "a" * 100_000 + "b"]).commands

    assert not parse_command_pattern("echo " + "*a" * 50).matches(command, deny=False)
