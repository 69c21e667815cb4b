"""Which calls of two recorded lives are the same, which differ and in what words, and which only one has."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentos.recordings.comparison import Pair, Use, pair_calls, sum_use
from agentos.recordings.format import Life
from agentos.recordings.masks import join_masks
from agentos.recordings.reader import RecordedCall
from agentos.userland.cli.recordings.recordings import recordings
from tests.recordings.written import line, write_recording


def think(number: int, text: str, said: str, **reply: Any) -> RecordedCall:
    request = {"model": "wise", "messages": [{"role": "user", "text": text}]}
    whole = {"success": True, "content": said, "tool_calls": [], "tokens": 3, "cost": 0.5, **reply}
    return RecordedCall(number, number + 1, "coder/1", "THINK", 1000.0, 1.0, request, whole)


def call(number: int, name: str, reply: Any = None, **request: Any) -> RecordedCall:
    given = {"success": True} if reply is None else reply
    return RecordedCall(number, number + 1, "coder/1", name, 1000.0, 1.0, request, given)


def words(pairs: Sequence[Pair]) -> list[tuple[str, str, str]]:
    return [(one.where, one.recorded, one.now) for pair in pairs for one in pair.differences]


def test_order_times_ids_and_what_is_measured_are_no_difference() -> None:
    tool = {"name": "read", "arguments": {"path": "a"}}
    first = [
        call(1, "HELLO"),
        think(3, "it is 10:15:00", "a", latency_ms=5.0, tool_calls=[{**tool, "id": "call_1"}]),
        call(5, "STORE", key="a", value=1),
        call(7, "STORE", key="b", value=1),
    ]
    second = [
        call(1, "STORE", key="b", value=1),
        call(3, "STORE", key="a", value=1),
        think(5, "it is 11:20:07", "a", latency_ms=9.0, tool_calls=[{**tool, "id": "call_2"}]),
        call(7, "EXIT"),
    ]

    assert [pair.differs for pair in pair_calls(first, second)] == [False] * 3


def test_what_masks_cover_is_no_difference_in_questions_and_answers_and_the_masks_are_named() -> None:
    first, second = (
        [think(1, f"close {ticket} at 10:30", f"{ticket} is closed"), call(3, "EXEC", command=f"close {ticket}")]
        for ticket in ("ticket-1", "ticket-22")
    )
    masks = join_masks([r"ticket-\d+", "never"])

    assert [pair.differs for pair in pair_calls(first, second)] == [True] * 4
    assert [pair.masks for pair in pair_calls(first, second, masks)] == [[r"ticket-\d+"]] * 2
    assert not any(pair.differs for pair in pair_calls(first, second, masks))
    assert words(pair_calls(first[:1], [think(1, "close ticket-3 at 10:30", "ticket-4 is shut")], masks)) == [
        ("answer's content", "closed", "shut"),
    ]


def test_another_answer_is_told_by_its_words_and_calls_of_one_life_alone_are_named() -> None:
    first = [think(1, "what?", "wash the car"), call(3, "EXEC", command="wash"), call(5, "SEND", to_name="a")]
    second = [think(1, "what?", "wash the dog"), call(3, "EXEC", command="bark"), call(5, "SEND", to_name="a")]
    pairs = pair_calls(first, second)

    assert words(pairs[:1]) == [("answer's content", "car", "dog")]
    assert [(pair.first and pair.first.begin, pair.second and pair.second.begin) for pair in pairs] == [
        (1, 1),
        (None, 3),
        (5, 5),
        (3, None),
    ]
    assert words(pairs[1:2]) == [("command", "wash", "bark")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"success": True, "exit_code": 0}, {"success": True, "exit_code": 1}, ("answer's exit_code", "0", "1")),
        ({"success": True}, {"success": False, "code": "busy"}, ("answer's success", "true", "false")),
        (None, {"success": True}, ("answer", "none", "an answer")),
    ],
)
def test_answers_of_other_calls_are_compared_too(old: Any, new: Any, said: tuple[str, str, str]) -> None:
    first, second = (RecordedCall(1, 2, "a/1", "EXEC", 1.0, 1.0, {"command": "x"}, reply) for reply in (old, new))

    assert words(pair_calls([first], [second]))[0] == said


def test_the_cost_is_unknown_if_one_answer_has_none() -> None:
    assert sum_use([think(1, "a", "b"), think(3, "c", "d")]) == Use(6, 1.0)
    assert sum_use([think(1, "a", "b"), think(3, "c", "d", cost=None)]).cost is None
    assert sum_use([call(1, "EXEC"), think(3, "a", "b", success=False)]).tokens == 0


def write(place: Path, *calls: RecordedCall, masks: Sequence[str] = ()) -> str:
    lines = [
        {**line(1), "n": [one.begin, one.end], "call": one.call, "request": one.request, "reply": one.reply}
        for one in calls
    ]
    lives = [Life("coder/1", "coder", 1000.0, exit="exit status 0")]
    return str(write_recording(place, lines, lives=lives, masks=[*masks]))


def test_the_command_shows_the_first_difference_and_its_exit_status_says_if_there_is_one(tmp_path: Path) -> None:
    one = write(tmp_path / "one.recording", think(1, "what?", "wash"), call(3, "EXEC", command="wash"))
    other = write(tmp_path / "other.recording", think(1, "what?", "wipe"), call(3, "EXEC", command="wipe"))
    done = CliRunner().invoke(recordings, ["diff", one, f"{other}:coder/1"])
    same = CliRunner().invoke(recordings, ["diff", one, one])
    none = CliRunner().invoke(recordings, ["diff", one, f"{other}:coder/9"])

    assert done.output.splitlines()[2:] == [
        "0 calls the same, 3 not",
        "first difference: call 1 of A, 1 of B, THINK: asked the same, answered otherwise",
        "  answer's content: A 'wash', B 'wipe'",
        "only A has 1 call:",
        "  3  EXEC wash",
        "only B has 1 call:",
        "  3  EXEC wipe",
    ]
    assert (done.exit_code, same.exit_code, none.exit_code) == (1, 0, 1)
    assert same.output.splitlines()[-1] == "2 calls the same, 0 not"
    assert "has no life coder/9" in none.output


def test_the_command_uses_the_masks_of_both_recordings_and_counts_them(tmp_path: Path) -> None:
    one = write(tmp_path / "one.recording", think(1, "close ticket-1", "for Ada"), masks=[r"ticket-\d+"])
    other = write(tmp_path / "other.recording", think(1, "close ticket-2", "for Bob"), masks=["for [A-Z]..$"])
    broken = write(tmp_path / "broken.recording", think(1, "a", "b"), masks=["("])

    done = CliRunner().invoke(recordings, ["diff", one, other])
    told = json.loads(CliRunner().invoke(recordings, ["diff", one, other, "--json"]).output)
    refused = CliRunner().invoke(recordings, ["diff", one, broken])

    assert done.output.splitlines()[2:] == [
        "1 call the same, 0 not",
        r"equal after masks: ticket-\d+ (1), for [A-Z]..$ (1)",
    ]
    assert (told["same"], told["masks"]) == (1, {r"ticket-\d+": 1, "for [A-Z]..$": 1})
    assert (done.exit_code, refused.exit_code) == (0, 1)
    assert "masks: '('" in refused.output
