"""Masks of users: what they make equal, how that is told, and patterns that are refused."""

from typing import Any

import pytest

from agentos.recordings.masks import MAX_MASKS, BadMask, Masks, join_masks, read_masks
from agentos.recordings.matching import Match, Matcher, Miss
from agentos.recordings.reader import RecordedCall

TICKET = r"ticket-\d+"
ANSWER = {"role": "assistant", "text": "look"}


def recorded(call: str, request: dict[str, object]) -> RecordedCall:
    return RecordedCall(1, 2, "coder/1", call, 1000.0, 1.0, request, {"success": True})


def question(*texts: str, answered: bool = False) -> dict[str, object]:
    said = [ANSWER] if answered else []
    return {"model": "wise", "messages": [*said, *({"role": "user", "text": text} for text in texts)]}


def find(masks: Masks, call: str, then: dict[str, Any], now: dict[str, Any]) -> Match | Miss:
    matcher = Matcher(masks)
    matcher.add(recorded(call, then))
    return matcher.find(call, now)


@pytest.mark.parametrize("answered", [False, True])
def test_a_question_is_equal_after_a_mask_and_says_which(answered: bool) -> None:
    then, now = (question(f"close {ticket} für mich", answered=answered) for ticket in ("ticket-1", "ticket-22"))
    found = find(read_masks([TICKET, "never"], "masks"), "THINK", then, now)

    assert isinstance(found, Match)
    assert (found.how, found.masks, found.drift) == ("masked", [TICKET], ())


@pytest.mark.parametrize("masks", [[], ["other"]])
def test_without_the_mask_there_is_no_answer(masks: list[str]) -> None:
    found = find(read_masks(masks, "masks"), "THINK", question("close ticket-1"), question("close ticket-22"))

    assert isinstance(found, Miss)


def test_a_changed_word_outside_of_the_mask_is_found() -> None:
    found = find(read_masks([TICKET], "masks"), "THINK", question("close ticket-1"), question("open ticket-22"))

    assert isinstance(found, Miss)
    assert [(one.recorded, one.now) for one in found.differences] == [("close", "open")]


def test_built_in_masks_and_the_users_are_named_side_by_side() -> None:
    then, now = {"command": "ticket-1 at 10:30"}, {"command": "ticket-2 at 11:45"}
    found = find(read_masks([TICKET], "masks"), "EXEC", then, now)

    assert isinstance(found, Match)
    assert found.masks == [TICKET, "clock"]


def test_a_mask_covers_text_of_any_script_and_half_a_surrogate_pair() -> None:
    found = find(read_masks(["für .*"], "masks"), "SEND", {"message": "für \ud800"}, {"message": "für Ada"})

    assert isinstance(found, Match)


@pytest.mark.parametrize("text", ["", "x" * 200_000])
def test_a_pattern_that_backtracks_elsewhere_takes_time_linear_in_the_text(text: str) -> None:
    found = find(read_masks(["(x+x+)+y"], "masks"), "EXEC", {"command": text}, {"command": text + "!"})

    assert isinstance(found, Miss)


def test_masks_of_a_recording_and_of_today_are_joined() -> None:
    then, today = ([f"{which}-{number}" for number in range(MAX_MASKS)] for which in ("then", "today"))

    assert [text for text, _ in join_masks(then, then[1:], today).patterns] == [*then, *today]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["("], r"masks: '\(': "),
        ([r"(a)\1"], "without backreferences"),
        (["x*"], "it matches an empty text"),
        (["a" * 501], "at most 500 characters"),
        (["\ud800"], "half of a surrogate pair"),
        ([f"a{number}" for number in range(MAX_MASKS + 1)], "expected at most 50 patterns, got 51"),
    ],
)
def test_patterns_that_are_none_are_refused_with_the_reason(patterns: list[str], said: str) -> None:
    with pytest.raises(BadMask, match=said):
        read_masks(patterns, "masks")
