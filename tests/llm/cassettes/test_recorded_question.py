"""What of a question is recorded, when two are the same, and how a difference is told."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from agentos.llm.answers.sampling import Sampling
from agentos.llm.cassettes.recorded_question import (
    MASK,
    PIECE,
    MessageDigests,
    cut_text,
    differences,
    digest_question,
    record_question,
    write_canonical,
)
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import Tool, ToolCall
from tests.support.runs.rows import each_row

TOOL = Tool("read", Text("Reads a file."), {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = ToolCall("call_1", "read", {"path": "a.py"})
QUESTION = Question(
    "m",
    [
        Message("user", "Repair the parser of the third module, please"),
        Message("assistant", "I look.", calls=[CALL]),
        Message("tool", "def parse(text):\n    return text", answers="call_1"),
    ],
    system="You are careful.\nAnswer in English.\nNever guess.",
    tools=[TOOL],
)


def masked(question: Question) -> str:
    return digest_question(record_question(question)).masked


def exact(question: Question) -> str:
    return digest_question(record_question(question)).exact


@each_row(
    "change",
    [
        pytest.param({"model": "other"}, id="model"),
        pytest.param({"system": "You are careful."}, id="system"),
        pytest.param({"tools": [Tool("read", Text("Reads a file."))]}, id="tools"),
        pytest.param({"tool_choice": "required"}, id="tool_choice"),
        pytest.param({"temperature": 0.5}, id="temperature"),
        pytest.param({"response_schema": {"type": "object"}}, id="schema"),
        pytest.param({"stop": ["END"]}, id="stop"),
        pytest.param({"sampling": Sampling(seed=7)}, id="sampling"),
        pytest.param({"messages": [Message("user", "Repair", images=[Image(b"png", "image/png")])]}, id="image"),
        pytest.param({"embed": True}, id="embedding"),
    ],
)
def test_what_decides_the_answer_makes_another_question(change: dict[str, Any]) -> None:
    assert masked(replace(QUESTION, **change)) != masked(QUESTION)


@each_row(
    "change",
    [
        pytest.param({"max_tokens": 17}, id="limit of tokens"),
        pytest.param({"cache_key": "session-9"}, id="cache key"),
        pytest.param({"cache_mark": "1h", "marked_tools": {"read": "default"}}, id="cache mark"),
    ],
)
def test_what_the_kernel_decides_anew_does_not(change: dict[str, Any]) -> None:
    assert exact(replace(QUESTION, **change)) == exact(QUESTION)


@each_row(
    "first, second",
    [
        ("id 0b9d0f4e-6c0c-4b1f-9a77-6a3f6d1f2a11 made", "id 1c8d0f4e-6c0c-4b1f-9a77-6a3f6d1f2b22 made"),
        ("Today's date is 2026-11-28.", "Today's date is 2027-01-03."),
        ("at 2026-11-28T09:15:02.123Z it", "at 2026-11-29T10:00:00.9Z it"),
        ("12:01:59 | started", "9:30 | started"),
        ("Sat Nov 28 2026", "Sun Jan  3 2027"),
        ("Ran 3 tests in 0.013s", "Ran 3 tests in 12 ms"),
        ("wrote 17 KiB", "wrote 2.5M"),
        ("in /tmp/tmpab12xy_z now", "in /tmp/tmpq now"),
        ("<object at 0x7f33a2c0>", "<object at 0x7f98ffff1230>"),
        ("commit 3f2a9bc01d", "commit 99ab0c11ee"),
        ("at 1764321045.25 s", "at 1764329999 s"),
    ],
)
def test_noise_of_another_run_is_masked(first: str, second: str) -> None:
    one, other = (Question("m", [Message("user", each)]) for each in (first, second))
    assert exact(one) != exact(other)
    assert masked(one) == masked(other)


def test_a_changed_word_is_found_each_time_and_told_by_its_place() -> None:
    dice, recorded = Random(1), record_question(QUESTION)
    for _ in range(500):
        at = dice.randrange(4)
        texts = [QUESTION.system or "", *(message.text for message in QUESTION.messages)]
        words = texts[at].split(" ")
        place = dice.randrange(len(words))
        words[place] += dice.choice(["x", " not", "."])
        changed = " ".join(words)
        if at == 0:
            asked = record_question(replace(QUESTION, system=changed))
        else:
            messages = list(QUESTION.messages)
            messages[at - 1] = replace(messages[at - 1], text=changed)
            asked = record_question(replace(QUESTION, messages=messages))
        assert digest_question(asked).masked != digest_question(recorded).masked, changed
        [(where, mine, other)] = differences(asked, recorded)
        assert where.startswith("system, line" if at == 0 else f"message {at} (")
        assert mine != other


def test_questions_at_one_point_of_a_conversation_have_one_place() -> None:
    def place(question: Question) -> str:
        return digest_question(record_question(question)).place

    first, answer, result = QUESTION.messages
    assert place(replace(QUESTION, messages=[first])) == "", "without an answer there is none"
    assert place(replace(QUESTION, messages=[first, answer, replace(result, text="other")])) == place(QUESTION)
    assert place(replace(QUESTION, messages=[first, replace(answer, text="Hm."), result])) != place(QUESTION)
    assert place(replace(QUESTION, model="other")) != place(QUESTION)


def test_the_number_of_messages_is_told() -> None:
    asked = record_question(replace(QUESTION, messages=QUESTION.messages[:2]))
    assert list(differences(asked, record_question(QUESTION))) == [("the number of messages", "2", "3")]


def test_a_long_text_is_masked_in_pieces_as_a_whole() -> None:
    words = ["12 ms", " ", "2026-01-01T10:00:00Z", "/tmp/ab.c", "a1b2c3d4e5", "\n", "é", " 3 MiB", ":", ",", '"', "x"]
    text = write_canonical("".join(Random(7).choices(words, k=100_000)))
    pieces = [*cut_text(text)]

    assert "".join(pieces) == text
    assert len(pieces) > 3
    assert "".join(MASK.sub("<>", piece) for piece in pieces) == MASK.sub("<>", text)


@pytest.mark.parametrize("size", [0, 1, PIECE, 4 * PIECE, 4 * PIECE + 1, 10 * PIECE])
def test_a_text_of_one_word_is_cut_anywhere(size: int) -> None:
    pieces = [*cut_text("x" * size)]

    assert "".join(pieces) == "x" * size
    assert all(len(piece) <= 4 * PIECE for piece in pieces)


def test_of_questions_that_share_messages_each_message_is_masked_once() -> None:
    messages = [{"role": "user", "text": f"ticket-{number}"} for number in range(10)]
    seen: list[object] = []

    def mask(part: dict[str, str]) -> dict[str, str]:
        seen.append(part)
        return {**part, "text": "ticket"}

    known = MessageDigests(mask)
    found = [digest_question({"model": "m", "messages": messages[:count]}, known) for count in range(1, 11)]
    other = digest_question({"model": "m", "messages": [{"role": "user", "text": "ticket-99"}]}, MessageDigests(mask))

    assert [part for part in seen[:-2] if part in messages] == messages
    assert len({digests.exact for digests in (*found, other)}) == 11
    assert other.masked == found[0].masked
