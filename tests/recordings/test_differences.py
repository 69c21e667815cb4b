"""Questions that are written as what follows an earlier one."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.recordings.format import LOOKED_BACK, Differences, encode_line, read_body
from agentos.recordings.reader import read_recording

from .written import line, write_recording

Question = dict[str, Any]


def written(tmp_path: Path, questions: list[Question]) -> Path:
    differences = Differences()
    lines = [line(n, request=differences.shorten(2 * n - 1, each)) for n, each in enumerate(questions, 1)]
    return write_recording(tmp_path, lines)


def test_a_longer_conversation_is_written_as_its_new_part() -> None:
    differences = Differences()
    messages = [{"role": "user", "text": str(n)} for n in range(6)]
    differences.shorten(1, {"model": "m", "system": "s", "messages": messages[:3]})

    assert differences.shorten(3, {"model": "m", "system": "s", "messages": messages[:5]}) == {
        "as": 1,
        "first": 3,
        "messages": messages[3:5],
    }
    changed = differences.shorten(5, {"model": "n", "messages": messages})
    assert changed == {"as": 3, "first": 5, "messages": messages[5:], "model": "n", "system": None}


def test_a_question_with_nothing_in_common_is_written_whole() -> None:
    differences = Differences()
    differences.shorten(1, {"model": "m", "messages": [{"role": "user", "text": "a"}]})
    other = {"model": "m", "messages": [{"role": "user", "text": "b"}]}

    assert differences.shorten(3, other) is other


def test_only_the_last_questions_are_gone_on_with() -> None:
    differences = Differences()
    first = {"model": "m", "messages": [{"role": "user", "text": "first"}]}
    differences.shorten(1, first)
    for n in range(LOOKED_BACK):
        differences.shorten(3 + 2 * n, {"model": "m", "messages": [{"role": "user", "text": str(n)}]})

    assert differences.shorten(99, first) is first


TEXTS = st.sampled_from(["a", "b", "ä", "\u2028", "x" * 50])
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "text": TEXTS}), max_size=5)
QUESTIONS = st.lists(
    st.fixed_dictionaries(
        {"model": st.sampled_from(["m", "n"]), "messages": MESSAGES},
        optional={"system": TEXTS, "tools": st.lists(st.fixed_dictionaries({"name": TEXTS}), min_size=1, max_size=2)},
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(QUESTIONS)
def test_what_is_read_is_what_was_asked(tmp_path_factory: Any, questions: list[Question]) -> None:
    path = written(tmp_path_factory.mktemp("d") / "r", questions)

    assert [call.request for call in read_recording(path).calls()] == questions


def test_an_hour_of_a_long_conversation_takes_little_room(tmp_path: Path) -> None:
    """200 turns, of which the last question has 785 KiB: plain lines of them take 90 MB."""
    turn = (785 << 10) // 400
    messages = [{"role": ("user", "assistant")[n % 2], "text": f"{n} ".ljust(turn, "x")} for n in range(400)]
    tools = [{"name": f"tool{n}", "description": "d" * 2000} for n in range(20)]
    questions = [{"model": "m", "tools": tools, "messages": messages[: 2 * n + 1]} for n in range(200)]

    path = written(tmp_path / "r", questions)

    assert (path / "calls.jsonl").stat().st_size <= 2_000_000
    *_, last = read_recording(path).calls()
    assert last.request == questions[-1]


def test_bodies_that_are_no_objects_are_kept() -> None:
    assert read_body(b'{"a": 1}') == {"a": 1}
    assert read_body(b"") == {}
    assert read_body(b"\xff\x00") == {"base64": "/wA="}
    assert read_body(b"[1]") == {"base64": "WzFd"}
    assert encode_line(read_body(rb'{"a": "\ud83d"}')) == rb'{"a":"\ud83d"}'
