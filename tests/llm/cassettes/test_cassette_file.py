"""A cassette's file: what is written is read again, lines are those of texts, and what is wrong is named."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.llm.cassettes.cassette_file import (
    MAX_FILE_BYTES,
    BadCassette,
    Entry,
    append_entry,
    read_cassette,
    write_cassette,
)
from agentos.llm.cassettes.recorded_question import digest_question, record_question
from agentos.llm.providers.provider import Answer, Message, Question
from agentos_sdk.values import ToolCall, Usage
from tests.support.runs.rows import each_row

LINE = '{"n": 1, "question": {"model": "m"}, "answer": {"finish_reason": "stop", "model": "m", "usage": {}}}'
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def entry(number: int, messages: list[Message], answer: Answer, system: str | None = None) -> Entry:
    question = record_question(Question("m", messages, system=system))
    return Entry(number, question, answer, digest_question(question))


def answer(text: str = "yes", **more: object) -> Answer:
    return Answer(text, Usage(3, 1), "stop", "m-1", **more)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.lists(texts, max_size=4), texts, st.none() | texts), max_size=6))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[str], str, str | None]]
) -> None:
    path = tmp_path_factory.mktemp("cassette") / "a.jsonl"
    entries = [
        entry(at, [Message("user", text) for text in asked], answer(said), system)
        for at, (asked, said, system) in enumerate(rows, 1)
    ]
    for at, one in enumerate(entries):
        append_entry(path, one, entries[:at])
    read = read_cassette(path)
    assert [(one.number, one.question, one.answer, one.digests) for one in read] == [
        (one.number, one.question, one.answer, one.digests) for one in entries
    ]


def test_calls_usage_and_vectors_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    calls = (
        ToolCall("1", "write", {"text": "a\nb", "deep": [1, {"x": None}]}, "c2ln"),
        ToolCall("2", "bad", "{"),  # type: ignore[arg-type]
        ToolCall("3", "bump", {}),
        ToolCall("", "", ""),  # type: ignore[arg-type]
    )
    whole = Answer("", Usage(5, 2, 1, 3), "tool_calls", "m-1", calls, b'[{"token":"x"}]', (b"\x00\x01\xff\x02",))
    write_cassette(path, [entry(1, [Message("user", "go")], whole)])
    assert [one.answer for one in read_cassette(path)] == [whole]


def test_a_conversation_is_written_once_and_texts_line_by_line(tmp_path: Path) -> None:
    path, messages, entries = tmp_path / "a.jsonl", [Message("user", "a long text\nof two lines")], list[Entry]()
    for number in range(1, 6):
        entries.append(entry(number, list(messages), answer(f"turn {number}\nand more"), "be\nkind"))
        messages += [Message("assistant", f"turn {number}\nand more"), Message("user", f"go on {number}")]
    write_cassette(path, entries)
    text = path.read_text()
    assert text.count("a long text") == text.count('"be"') == 1
    assert all(len(line) < 80 for line in text.splitlines())
    assert [one.question for one in read_cassette(path)] == [one.question for one in entries]


@each_row(
    "text, told",
    [
        pytest.param(LINE + "\n{", "line 2: no JSON", id="no JSON"),
        pytest.param("[]", "entry 1: Expected `object`", id="no object"),
        pytest.param(LINE.replace('"n"', '"m"'), "entry 1: Object", id="unknown key"),
        pytest.param(LINE.replace('{"model": "m"}', "{}"), "entry 1: question.model: required", id="no model"),
        pytest.param(LINE.replace('"usage": {}', '"usage": {"in": 1}'), "entry 1: ", id="wrong usage"),
        pytest.param(LINE + LINE, "entry 2: n: 1 is the number of an entry above", id="twice"),
        pytest.param(LINE.replace('{"model"', '{"as": 1, "model"'), "as: no entry above has the number 1", id="itself"),
        pytest.param(LINE.replace('{"model"', '{"system": [1], "model"'), "entry 1: ", id="a text that is none"),
        pytest.param(LINE.replace('{"model"', '{"messages": 7, "model"'), "entry 1: ", id="messages that are none"),
        pytest.param(LINE.replace('"usage": {}', '"usage": {"input": -1}'), "usage: expected counts", id="negative"),
        pytest.param(LINE.replace('"usage"', '"vectors": ["AAA="], "usage"'), "expected 32-bit floats", id="floats"),
        pytest.param(LINE.replace('"usage"', '"calls": [{"id": 1}], "usage"'), "entry 1: Expected `str`", id="a call"),
        pytest.param(LINE.replace('"m"}', "[" * 100_000 + "}"), "nested too deep", id="depth"),
        pytest.param("\udcff", "not UTF-8 at byte 0", id="not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadCassette) as error:
        read_cassette(path)
    assert str(path) in str(error.value)
    assert told in str(error.value)


def test_no_file_is_written_that_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.llm.cassettes.cassette_file.MAX_FILE_BYTES", 1 << 20)
    path, first = tmp_path / "a.jsonl", entry(1, [Message("user", "one")], answer())
    append_entry(path, first, [])
    with path.open("a") as file:
        file.write(" " * ((1 << 20) - path.stat().st_size - 10))
    with pytest.raises(OSError, match="too large"):
        append_entry(path, entry(2, [Message("user", "two")], answer()), [first])
    assert [one.number for one in read_cassette(path)] == [1]


def test_a_file_that_is_none_or_too_long_is_refused(tmp_path: Path) -> None:
    assert read_cassette(tmp_path / "none.jsonl") == []
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long").touch()
    os.truncate(tmp_path / "long", MAX_FILE_BYTES + 1)
    for name, told in (("fifo", "not a regular file"), ("long", "longer than 64 MiB"), (".", "directory")):
        with pytest.raises(BadCassette, match=told):
            read_cassette(tmp_path / name)


def test_an_entry_of_a_few_bytes_can_not_stand_for_ever_more_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.llm.cassettes.cassette_file.MAX_MESSAGES", 2_000)
    path, first = tmp_path / "a.jsonl", json.loads(LINE)
    first["question"]["messages"] = [{"role": "user", "text": ""}] * 40
    lines = [LINE.replace('"n": 1', f'"n": {n}').replace('"model"', '"as": 1, "first": 40, "model"', 1) for n in (2, 3)]
    path.write_text(f"{json.dumps(first)}\n" + "\n".join(lines))
    assert len(read_cassette(path)) == 3

    lines = [lines[0].replace('"n": 2', f'"n": {n}') for n in range(2, 100)]
    path.write_text(f"{json.dumps(first)}\n" + "\n".join(lines))
    with pytest.raises(BadCassette, match="more than 2,000 messages together"):
        read_cassette(path)


def test_an_entry_of_a_few_bytes_can_not_stand_for_ever_more_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.llm.cassettes.cassette_file.MAX_TEXT", 1 << 20)
    path, first = tmp_path / "a.jsonl", json.loads(LINE)
    first["question"]["system"] = "{" * (24 << 10)
    lines = [LINE.replace('"n": 1', f'"n": {n}').replace('"model"', '"as": 1, "model"', 1) for n in range(2, 50)]
    path.write_text(f"{json.dumps(first)}\n" + "\n".join(lines))

    with pytest.raises(BadCassette, match="entry 43: with it the questions have more than 1,048,576 characters"):
        read_cassette(path)


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_nothing_is_recorded_through_a_link(tmp_path: Path, plant: Callable[[str, str], None]) -> None:
    """Cassettes lie in a project, in which an agent may work: the kernel would write over any file of its user's."""
    path, victim = tmp_path / "a.jsonl", tmp_path / "victim"
    victim.write_text("victim")
    plant(str(victim), str(tmp_path / ".a.jsonl.part"))
    plant(str(victim), str(path))
    first = entry(1, [Message("user", "one")], answer())

    with pytest.raises(OSError, match=r"symbolic links|regular file"):
        append_entry(path, first, [first])
    write_cassette(path, [first])

    assert victim.read_text() == "victim"
    assert [one.number for one in read_cassette(path)] == [1]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")

    with pytest.raises(OSError, match=r"regular file|No such device"):
        append_entry(tmp_path / "a.jsonl", one := entry(1, [Message("user", "one")], answer()), [one])
