"""The first line in which two texts differ, also of texts that an agent has made long."""

import pytest

from agentos.services.differences import STEP, find_difference


@pytest.mark.parametrize(
    ("asked", "recorded", "found"),
    [
        ("ab", "ac", ("text", "ab", "ac")),
        ("ab", "abc", ("text", "ab", "abc")),
        ("a\nb", "a\nc", ("text, line 2", "b", "c")),
        ("a\nb", "a\nb\nc", ("text, line 3", "(nothing)", "c")),
        ("a\n", "a", ("text, line 2", "", "(nothing)")),
        ("a", "\n", ("text, line 1", "a", "")),
        ("\n" * STEP + "x", "\n" * STEP + "y", (f"text, line {STEP + 1}", "x", "y")),
        ("x" * STEP + "abc\nd", "x" * STEP + "abc", ("text, line 2", "d", "(nothing)")),
    ],
)
def test_the_first_differing_line_is_found_with_its_number(
    asked: str, recorded: str, found: tuple[str, str, str]
) -> None:
    assert find_difference("text", asked, recorded) == found
    assert find_difference("text", recorded, asked) == (found[0], found[2], found[1])


def test_of_a_long_line_what_stands_around_the_difference_is_quoted() -> None:
    where, asked, recorded = find_difference("text", "x" * 500 + "a" * 500, "x" * 500 + "b" * 500)

    assert where == "text"
    assert (asked, recorded) == (f"{'x' * 80}{'a' * 80}…", f"{'x' * 80}{'b' * 80}…")
