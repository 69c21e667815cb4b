"""Patterns of agents: what they match, in one line and in many, and what is refused."""

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.services.logs.pattern import MAX_PATTERN_CHARS, Pattern, PatternError
from tests.support.runs.rows import each_row

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c1]", r"\w", r"\d", r"\s", r"\W", r"\b", r"\x61", "^", "$", "1", " "]
)


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}", "*?"])
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})")
        | st.tuples(inner, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    )


@given(st.recursive(ATOMS, combine, max_leaves=8), st.lists(st.text("abc1. ", max_size=6), min_size=1), st.booleans())
def test_lines_are_found_as_re_finds_them_one_by_one(pattern: str, lines: list[str], ignore_case: bool) -> None:
    pattern = f"(?i){pattern}" if ignore_case else pattern
    found = Pattern(pattern)

    expected = [place for place, text in enumerate(lines) if re.search(pattern, text)]
    assert found.find(lines) == expected
    assert [place for place, text in enumerate(lines) if found.matches(text)] == expected


@each_row("pattern", ["\\Ab", "b\\z", "(?-m)^b", "(?-m:b$)", "(?s)b.", r"\Cb", "[^x]b", r"b\sa", "b\\x0aa", "^$"])
def test_no_match_goes_beyond_its_line(pattern: str) -> None:
    lines = ["a", "ab", "", "b", "a b"]
    found = Pattern(pattern)

    assert found.find(lines) == [place for place, text in enumerate(lines) if found.matches(text)]


@each_row(
    ("pattern", "text"),
    [
        *(
            ("Error", "an Error"),
            (r"exit status \d+$", "exit status 12"),
            ("(?i)ERROR", "error"),
            ("a{x", "a{x"),
            ("", ""),
        ),
        *((r"\bport\b", "port 80"), ("ü", "für"), ("(?i)Ü", "für"), (r"\pL", "ü"), ("half", "\udcff half")),
    ],
)
def test_common_patterns_match(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text)
    assert Pattern(pattern).find(["other", text]) in ([1], [0, 1])
    assert not Pattern(pattern + "nowhere").matches(text)


@each_row(("pattern", "may"), [("abc", False), ("x y", True), ("a.c", True), ("^abc", True), ('"', True), ("ü", True)])
def test_only_a_pattern_that_finds_itself_is_looked_for_before_decoding(pattern: str, may: bool) -> None:
    assert Pattern(pattern).may_match(b'{"text":"\\u00fc x y"}') is may


@each_row("pattern", ["(a+)+$", "(a|a)*c", "(x+x+)+y", "(.*)(.*)(.*)(.*)(.*)c", "(a|b)*a(a|b){20}c", "(.?){50}Z"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """With backtracking they take longer than the universe is old: the limit is that of the test."""
    for text in ("a" * 8192, "x" * 8192, "ab" * 4096):
        assert not Pattern(pattern).matches(text + "!")


@each_row(
    ("pattern", "why"),
    [
        *(
            ("(", "missing )"),
            (")", "unexpected )"),
            ("a**", "bad repetition"),
            ("[", "missing ]"),
            ("[z-a]", "range: z-a"),
        ),
        *(
            (r"(a)\1", "escape sequence: \\\\1; the syntax is RE2's"),
            ("(?=a)", "(?=; the syntax is RE2's"),
            ("(?<!a)", "(?<"),
        ),
        *(
            (r"a\Z", "escape sequence"),
            ("a{1001}", "repetition size"),
            ("(a{99}){99}", "repetition size"),
            ("\\", "trailing"),
        ),
        *(
            ("a" * (MAX_PATTERN_CHARS + 1), "at most 500 characters"),
            ("\ud800", "surrogate"),
            (r"(\pL{200}){5}", "too large"),
        ),
    ],
)
def test_what_is_no_pattern_or_too_large_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternError) as refused:
        Pattern(pattern)
    assert why.replace("\\\\", "\\") in str(refused.value)
    assert "(?m)" not in str(refused.value)


def test_patterns_are_used_in_several_threads_at_once() -> None:
    pattern, wrong = Pattern(r"status [45]\d\d$"), list[object]()

    def search() -> None:
        found = pattern.find(["status 200", "status 404"] * 500)
        wrong.extend(place for place in found if place % 2 == 0)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
