"""The file of a cassette: JSON values one after the other, each a question and its answer, in the order of first use.

Texts of several lines are arrays of lines, keys are sorted, so that a version control system shows what has changed. A
question that goes on with an earlier one says ``as``, the number of that one, and ``first``, how many of its messages
come first; keys that it doesn't have are that one's, and null if it has none.
"""

import base64
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import attrs
import msgspec
from attrs import define
from msgspec import Struct

from agentos.llm.providers.provider import Answer, FinishReason
from agentos.services.files.foreign_files import read_regular
from agentos.structs import learn
from agentos_sdk.values import ToolCall, Usage

from .recorded_question import Digests, Recorded, digest_question, write_canonical

MAX_FILE_BYTES = 64 << 20
MAX_MESSAGES = 500_000  # of all questions: one may have all messages of an earlier one in a few bytes
MAX_TEXT = 1 << 30  # characters of all questions, for the same reason
LOOKED_BACK = 8  # questions among which the one is looked for that a question goes on with
BLANKS = re.compile(r"[ \t\r\n]*")  # between values; a file may have 64 MiB of them
Lines = str | list[str]


class BadCassette(ValueError):
    """The file can't be used; the text names it, the entry and the field."""


class RecordedAnswer(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An answer in the file; ``vectors`` are base64, ``logprobs`` the value of its JSON."""

    finish_reason: FinishReason
    model: str
    usage: dict[str, int]
    text: Lines = ""
    calls: list[dict[str, Any]] = []
    logprobs: Any = None
    vectors: list[str] = []


class Line(Struct, forbid_unknown_fields=True):
    """One entry of the file."""

    n: int
    question: dict[str, Any]
    answer: RecordedAnswer


learn(Line, ToolCall)


@define(eq=False)
class Entry:
    """A question with its answer. ``number`` is ``n`` of its line: unique in the file."""

    number: int
    question: Recorded
    answer: Answer
    digests: Digests
    used: bool = False


def read_cassette(path: Path) -> list[Entry]:
    """All entries; none if there is no such file. Raises :class:`BadCassette`. Reads the file."""
    try:
        data = read_regular(path, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise BadCassette(f"{path}: longer than {MAX_FILE_BYTES >> 20} MiB")
        text = data.decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise BadCassette(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise BadCassette(f"{path}: {error.strerror}") from None
    entries, questions, room, left = list[Entry](), dict[int, Recorded](), MAX_MESSAGES, MAX_TEXT
    for number, value in enumerate(_read_values(path, text), 1):
        try:
            line = msgspec.convert(value, Line)
            question = _complete(line.question, questions)
            left -= len(write_canonical(question))
            if left < 0:
                raise ValueError(f"with it the questions have more than {MAX_TEXT:,} characters together")
            entries.append(Entry(line.n, question, _read_answer(line.answer), digest_question(question)))
        except (msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadCassette(f"{path}: entry {number}: {error}") from None
        if line.n in questions:
            raise BadCassette(f"{path}: entry {number}: n: {line.n} is the number of an entry above")
        questions[line.n] = question
        room -= len(question.get("messages", ()))
        if room < 0:
            raise BadCassette(f"{path}: its questions have more than {MAX_MESSAGES:,} messages together")
    return entries


def _read_values(path: Path, text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), 0
    while True:
        at = BLANKS.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise BadCassette(f"{path}: nested too deep") from None
        except ValueError as error:
            line = text.count("\n", 0, getattr(error, "pos", at)) + 1
            raise BadCassette(f"{path}: line {line}: no JSON: {getattr(error, 'msg', error)}") from None
        yield value


def _complete(question: Recorded, earlier: Mapping[int, Recorded]) -> Recorded:
    """The whole question of an entry. Raises ``ValueError``."""
    own = {key: value for key, value in question.items() if key not in ("as", "first")}
    if (basis := question.get("as")) is not None:
        if basis not in earlier:
            raise ValueError(f"question.as: no entry above has the number {basis}")
        messages = [*earlier[basis].get("messages", ())[: question.get("first", 0)], *own.get("messages", ())]
        own = {**earlier[basis], **own, "messages": messages}
    own = {key: value for key, value in own.items() if value is not None}
    if not isinstance(own.get("model"), str):
        raise ValueError("question.model: required")
    return _map_texts(own, _joined)


def _read_answer(answer: RecordedAnswer) -> Answer:
    if any(count < 0 for count in answer.usage.values()):
        raise ValueError("answer.usage: expected counts of at least 0")
    vectors = [base64.b64decode(vector, validate=True) for vector in answer.vectors]
    if any(len(vector) % 4 for vector in vectors):
        raise ValueError("answer.vectors: expected 32-bit floats")
    return Answer(
        _joined(answer.text),
        Usage(**answer.usage),
        answer.finish_reason,
        answer.model,
        tuple(msgspec.convert(call, ToolCall) for call in answer.calls),
        None if answer.logprobs is None else msgspec.json.encode(answer.logprobs),
        tuple(vectors),
    )


def _record_answer(answer: Answer) -> Recorded:
    found = RecordedAnswer(
        answer.finish_reason,
        answer.model,
        {name: count for name, count in attrs.asdict(answer.usage).items() if count},
        _split(answer.text),
        [
            {name: value for name, value in attrs.asdict(call, recurse=False).items() if value is not None}
            for call in answer.calls
        ],
        None if answer.logprobs is None else json.loads(answer.logprobs),
        [base64.b64encode(vector).decode() for vector in answer.vectors],
    )
    made: Recorded = msgspec.to_builtins(found)
    return made


def write_entry(entry: Entry, earlier: Sequence[Entry]) -> str:
    """The text of an entry behind others."""
    question = _map_texts(_shorten(entry.question, earlier[-LOOKED_BACK:]), _split)
    value = {"n": entry.number, "question": question, "answer": _record_answer(entry.answer)}
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def append_entry(path: Path, entry: Entry, earlier: Sequence[Entry]) -> None:
    """Write an entry behind the others; into a new file if it is the first. ``OSError``, also beyond the limit."""
    if not earlier:
        write_cassette(path, [entry])
        return
    text = write_entry(entry, earlier)
    with _open(path, os.O_APPEND) as file:
        if file.seek(0, os.SEEK_END) + len(text.encode()) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        file.write(text)


def write_cassette(path: Path, entries: Sequence[Entry]) -> None:
    """Replace the file by one with these entries, numbered anew: a reader sees the old one or the new one whole."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _open(part, os.O_CREAT | os.O_EXCL) as file:
            for place, entry in enumerate(entries):
                entry.number = place + 1
                file.write(write_entry(entry, entries[:place]))
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _open(path: Path, flags: int) -> TextIO:
    """Open a file to write to it, and nothing else: the directory may be one in which an agent works."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags, 0o666)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file of one name", str(path))
    return open(fd, "w", encoding="utf-8")


def _shorten(question: Recorded, earlier: Sequence[Entry]) -> Recorded:
    """The question as a difference to the one of ``earlier`` with which it has most messages in common."""
    messages, best, common = question.get("messages", []), None, 0
    for entry in reversed(earlier):
        pairs = zip(messages, entry.question.get("messages", []), strict=False)
        count = next((at for at, (mine, other) in enumerate(pairs) if mine != other), None)
        count = min(len(messages), len(entry.question.get("messages", []))) if count is None else count
        if count > common:
            best, common = entry, count
    if best is None:
        return question
    keys = dict.fromkeys([*question, *best.question])
    own = {key: question.get(key) for key in keys if question.get(key) != best.question.get(key)}
    own.pop("messages", None)
    return {**own, "as": best.number, "first": common} | ({"messages": rest} if (rest := messages[common:]) else {})


def _map_texts(question: Recorded, change: Callable[[Any], Any]) -> Recorded:
    """The question with the texts that people read changed: instructions, messages and descriptions of tools."""
    made = dict(question)
    if made.get("system") is not None:
        made["system"] = change(made["system"])
    for key, name in (("messages", "text"), ("tools", "description")):
        if made.get(key):
            made[key] = [{**one, name: change(one[name])} if name in one else one for one in made[key]]
    return made


def _split(text: str) -> Lines:
    return text.split("\n") if "\n" in text else text


def _joined(text: Lines) -> str:
    return text if isinstance(text, str) else "\n".join(text)
