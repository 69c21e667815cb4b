"""Ranges of names by prefix: what is cut off is what no pattern matches."""

from hypothesis import given
from hypothesis import strategies as st

from agentos.permissions.patterns.globs import literal_prefix
from agentos.permissions.patterns.names import NamePattern
from agentos.permissions.patterns.prefixes import intersect_prefixes, reduce_prefixes

TEXTS = st.text("ab", max_size=4)
PREFIXES = st.lists(TEXTS, max_size=6).map(reduce_prefixes)


def begins(text: str, prefixes: list[str]) -> bool:
    return any(text.startswith(prefix) for prefix in prefixes)


@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_reduced_prefixes_are_in_order_and_cover_the_same_once(prefixes: list[str], text: str) -> None:
    reduced = reduce_prefixes(prefixes)

    assert begins(text, reduced) == begins(text, prefixes)
    assert reduced == sorted(reduced)
    assert sum(text.startswith(prefix) for prefix in reduced) <= 1


@given(PREFIXES, PREFIXES, TEXTS)
def test_the_intersection_covers_what_both_cover(one: list[str], other: list[str], text: str) -> None:
    both = intersect_prefixes(one, other)

    # A prefix that is longer than the text says nothing about it.
    longer = text + "abab"
    assert begins(longer, both) == (begins(longer, one) and begins(longer, other))
    assert both == reduce_prefixes(both)


@given(st.text("ab*?[]\\", min_size=1, max_size=8), TEXTS)
def test_all_that_a_pattern_matches_begins_with_its_prefix(pattern: str, text: str) -> None:
    try:
        parsed = NamePattern.parse(pattern)
    except ValueError:
        return

    if parsed.matches(text, deny=False):
        assert text.startswith(literal_prefix(parsed.items))


def test_the_prefix_ends_at_the_first_wildcard() -> None:
    found = {
        text: literal_prefix(NamePattern.parse(text).items) for text in ("plan.*", "a?b", "*", r"a\*b", "[ab]c", "note")
    }

    assert found == {"plan.*": "plan.", "a?b": "a", "*": "", r"a\*b": "a*b", "[ab]c": "", "note": "note"}
