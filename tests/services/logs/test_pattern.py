"""Patterns of agents: what they match, and how long that can take."""

import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.services.logs.pattern import MAX_PATTERN_CHARS, Pattern, PatternError
from tests.support.rows import each_row
from tests.support.wire import PATIENCE

LARGE_SET = "".join(map(chr, range(0x4E00, 0x4E00 + 480)))
ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c1]", r"\w", r"\d", r"\s", r"\.", r"\x61", "^", "$", "1", " "]
)


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?"])
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})")
        | st.tuples(inner, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    )


@given(st.recursive(ATOMS, combine, max_leaves=8), st.text("abc1. \n", max_size=10), st.booleans())
def test_a_pattern_finds_what_it_finds_in_re(pattern: str, text: str, ignore_case: bool) -> None:
    pattern = f"(?i){pattern}" if ignore_case else pattern
    try:
        found = Pattern(pattern)
    except PatternError as error:
        assert "states" in str(error)
        return

    if text.endswith("\n") and "$" in pattern:
        return  # in re $ also matches before a last newline; a line has none
    assert found.matches(text) == bool(re.search(pattern, text))


@each_row(
    ("pattern", "text"),
    [("Error", "an Error"), (r"exit status \d+$", "exit status 12"), ("(?i)ERROR", "error"), ("a{x", "a{x"), ("", "")],
)
def test_common_patterns_match(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text)
    assert not Pattern(pattern + "nowhere").matches(text)


@each_row("pattern", ["(a+)+$", "(a|a)*c", "(x+x+)+y", "(.*)(.*)(.*)(.*)(.*)c", "(a|b)*a(a|b){20}c"])
def test_no_pattern_takes_long(pattern: str) -> None:
    began = time.process_time()
    for text in ("a" * 8192, "x" * 8192, "ab" * 4096):
        assert not Pattern(pattern).matches(text + "!")

    assert time.process_time() - began < PATIENCE  # re would take longer than the universe is old for some


@pytest.mark.parametrize("pattern", [f"[{LARGE_SET}]{{290}}", f"[^{LARGE_SET}]{{0,290}}Z", "(.?){50}Z"])
def test_no_pattern_takes_much_memory(pattern: str) -> None:
    tracemalloc.start()
    try:
        assert not Pattern(pattern).matches("".join(map(chr, range(0x5E00, 0x5E00 + 2000))))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@each_row(
    "pattern",
    [
        *("(", ")", "a**", "*", "[", "[z-a]", "a{3,1}", r"(a)\1", "(?=a)", "(?<!a)", r"\b", r"\x1", "\\", "a{9999}"),
        *("(a{99}){99}", "(" * 499, "a" * (MAX_PATTERN_CHARS + 1)),
    ],
)
def test_what_is_no_pattern_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern)
