"""The words that differ between two texts, and what is shown of long ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.recordings.words import CONTEXT, MAX_QUOTED, Covered, are_times, compare_words

WORDS = st.lists(st.sampled_from(["the", "file", "12:00", "3 s", "\n", "x" * 200]), max_size=30)


@given(WORDS, WORDS)
def test_texts_have_no_differing_words_exactly_if_they_are_equal(one: list[str], two: list[str]) -> None:
    old, new = " ".join(one), " ".join(two)

    assert bool(list(compare_words(old, new))) == (old != new)
    assert all(recorded != now for recorded, now in compare_words(old, new))


@given(WORDS)
def test_what_masks_cover_is_equal_and_named(words: list[str]) -> None:
    covered = Covered()
    old = " ".join(words)
    new = old.replace("12:00", "13:30").replace("3 s", "4.5 s")

    assert [*compare_words(old, new, covered)] == []
    assert set(covered) == {name for name, text in (("clock", "12:00"), ("duration", "3 s")) if text in words}


@pytest.mark.parametrize("same", [0, 1, 600_000])
def test_long_texts_are_compared_from_where_they_differ(same: int) -> None:
    [(old, new)] = compare_words("a" * same + "b c" * 500_000, "a" * same + "bd")

    assert (old[:3], old[-1], new) == (" cb", "…", "d")
    assert [*compare_words("a" * 600_000, "a" * 600_000)] == []


def test_a_long_word_is_shown_from_shortly_before_it_differs() -> None:
    [(old, new)] = compare_words("begin " + "x" * 3000, "begin " + "x" * 3001)

    assert (old, new) == ("…" + "x" * CONTEXT, "…" + "x" * (CONTEXT + 1))
    assert len(new) < MAX_QUOTED


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("it is Monday, 29 November 2026.", "it is Tuesday, 1 December 2026.", True),
        ("on Nov 29, 2026 at 9:58", "on 1/12/2026 at 9:58", True),
        ("took 3 minutes", "took 2 hours", True),
        ("since 2026-11-29T10:00:00Z", "since yesterday", True),
        ("it is Monday", "it is late", False),
        ("it is", "it is Monday", False),
        ("version 1.2.3", "version 1.2.4", False),
        ("it may take 3 tries", "it may take 4 tries", False),
    ],
)
def test_words_are_times_if_they_are_on_both_sides(old: str, new: str, found: bool) -> None:
    assert {are_times(*pair) for pair in compare_words(old, new)} == {found}
