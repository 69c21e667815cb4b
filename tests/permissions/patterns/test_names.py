import fnmatch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.permissions.patterns.base import BadPattern
from agentos.permissions.patterns.names import MAX_NAME_LENGTH, ModelPattern, NamePattern, match_any
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row


def matches(text: str, name: str) -> bool:
    return NamePattern.parse(text).matches(name, deny=False)


@each_row(
    ("text", "name", "expected"),
    [
        ("THINK", "THINK", True),
        ("THINK", "think", False),
        ("THINK", "THINKER", False),
        ("THINK", "RETHINK", False),
        ("*", "", True),
        ("*", "openai/gpt-4.1", True),
        ("*", "a\nb", True),
        ("gemini-*", "gemini-2.5-flash", True),
        ("gemini-*", "gemini-", True),
        ("gemini-*", "my-gemini-2.5", False),
        ("*-flash", "gemini-2.5-flash", True),
        ("*-flash", "gemini-2.5-flash-lite", False),
        ("openai/*", "openai/a/b", True),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("a**b", "ab", True),
        ("worker-?", "worker-1", True),
        ("worker-?", "worker-12", False),
        ("worker-[0-9]", "worker-7", True),
        ("worker-[!0-9]", "worker-7", False),
        ("worker-[^0-9]", "worker-x", True),
        ("worker-[!0-9]", "worker-/", True),
        ("[[]x]", "[x]", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("a.b", "axb", False),
        ("x", "x\n", False),
        ("x*", "x\n", True),
        ("!x", "!x", True),
        ("ünï*", "ünïcode", True),
    ],
)
def test_a_pattern_means_the_whole_name(text: str, name: str, expected: bool) -> None:
    assert matches(text, name) == expected
    assert NamePattern.parse(text).matches(name, deny=True) == expected


@each_row(
    ("text", "hint"),
    [
        ("", "write '\\*'"),
        (" x", "a space"),
        ("x\n", "a space"),
        ("[a", "never closed"),
        ("[z-a]", "backwards"),
        ("[[:digit:]]", "a-zA-Z"),
        ("x\\", "backslash"),
        ("x" * (MAX_NAME_LENGTH + 1), "longer"),
    ],
)
def test_what_is_no_pattern_is_refused(text: str, hint: str) -> None:
    with pytest.raises(BadPattern, match=hint):
        NamePattern.parse(text)


def test_what_is_too_long_to_be_a_name_is_never_granted_and_always_denied() -> None:
    assert not NamePattern.parse("*").matches("x" * (MAX_NAME_LENGTH + 1), deny=False)
    assert NamePattern.parse("y").matches("x" * (MAX_NAME_LENGTH + 1), deny=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text", ["a*" * 300 + "b", "*" + "?" * 60 + "*b", "[a-z]*" * 100 + "[0-9]"])
def test_no_name_makes_matching_take_long(text: str) -> None:
    assert not matches(text, "a" * MAX_NAME_LENGTH)


TEXTS = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "[b-c]"]), min_size=1, max_size=6).map("".join)
NAMES = st.text(alphabet="abc/\n", max_size=6)


@given(TEXTS, NAMES)
@settings(max_examples=rounds(300))
def test_it_means_what_the_shell_means(text: str, name: str) -> None:
    assert matches(text, name) == fnmatch.fnmatchcase(name, text)


@given(st.lists(TEXTS, max_size=5), st.lists(NAMES, max_size=20), st.booleans())
def test_asking_all_at_once_is_asking_each(texts: list[str], names: list[str], deny: bool) -> None:
    patterns = [NamePattern.parse(text) for text in texts]
    at_once = match_any(patterns, deny=deny)

    for name in (*names, "x" * MAX_NAME_LENGTH):
        assert at_once(name) == any(pattern.matches(name, deny=deny) for pattern in patterns)


@given(TEXTS, TEXTS, st.lists(NAMES, max_size=20))
@settings(max_examples=rounds(300))
def test_a_pattern_that_covers_another_matches_whatever_that_does(outer: str, inner: str, names: list[str]) -> None:
    if NamePattern.parse(outer).covers(NamePattern.parse(inner), deny=False):
        assert [name for name in names if matches(inner, name) and not matches(outer, name)] == []


@each_row(
    ("outer", "inner", "covers"),
    [
        ("*", "gemini-*", True),
        ("gemini-*", "*", False),
        ("gemini-*", "gemini-2.5-*", True),
        ("gemini-*", "gemini-*", True),
        ("gemini-*", "openai/*", False),
        ("*a", "*ba", True),
        ("?*", "*?", True),
        ("?*", "*", False),
        ("[a-z]", "[c-f]", True),
        ("[a-z]", "?", False),
        ("[!a]", "b", True),
        ("*[ab]*", "*a*b*", True),
    ],
)
def test_one_pattern_covers_another(outer: str, inner: str, covers: bool) -> None:
    assert NamePattern.parse(outer).covers(NamePattern.parse(inner), deny=False) == covers


@each_row(
    ("text", "name", "denied"),
    [
        ("expensive", "expensive", True),
        ("expensive", "Expensive", True),
        ("expensive", "expensive@latest", True),
        ("expensive", "EXPENSIVE:Latest", True),
        ("expensive", "expensive:free@001", True),
        ("expensive", " expensive\t", True),
        ("Expensive", "expensive", True),
        ("expensive:latest", "expensive", True),
        ("expensive@latest", "Expensive:LATEST", True),
        ("expensive:latest", "expensive:8b", False),
        ("expensive:70b", "EXPENSIVE:70B", True),
        ("expensive:70b", "expensive:8b", False),
        ("expensive", "expensive-mini", False),
        ("expensive", "expensiv", False),
        ("big-*", "Big-2:free", True),
        ("*-PRO", "gem-pro@latest", True),
        ("[A-C]x", "bX:1", True),
        ("maker/big", "Maker/Big:free", True),
        ("host", "host:5000/model", False),
        ("big", "big:", False),
        ("big", ":big", False),
    ],
)
def test_a_denial_of_a_model_is_of_each_spelling_that_providers_take(text: str, name: str, denied: bool) -> None:
    assert ModelPattern.parse(text).matches(name, deny=True) == denied
    assert ModelPattern.parse(text).matches(name, deny=False) == NamePattern.parse(text).matches(name, deny=False)
