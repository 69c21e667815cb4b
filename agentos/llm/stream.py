"""Parser for streamed LLM responses: splits server-sent events and assembles the answer from them.

The sending server is not trusted: sizes, counts and nesting depth are limited.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from agentos_sdk import codec
from agentos_sdk.nesting import outside_strings

from .providers.account import ProviderAccount
from .providers.provider import (
    Answer,
    Delta,
    Failing,
    FinishReason,
    Hear,
    Question,
    ToolCall,
    Usage,
    guessed,
    guessed_input,
)

MOST = 64 << 20  # bytes of a stream; most of a long answer is the JSON envelopes around its words
MOST_AT_ONCE = 1 << 20  # bytes of one event, and characters of all tools' arguments: parsed without a pause
MOST_LOGPROBS = 16 << 20  # characters of JSON
MOST_INSIDE = 10_000  # arrays and objects in an event: a million of them would take a third of a second to parse
MOST_CALLS = 1000
DEEPEST = codec.MAX_DEPTH - 5  # nesting of a tool's arguments; a later request has to hold them when they are sent back
OURS = "call-of-agentos-"  # prefix of the tool call ids that we generate when the vendor sent none


class Nonsense(Exception):
    """The response is malformed or exceeds a limit. The message is appended to the vendor's name."""


@define(eq=False)
class HalfCall:
    """A tool call of which arguments are still arriving, as pieces of JSON."""

    id: str
    name: str = ""
    arguments: list[str] = field(factory=list)


@define(eq=False)
class Arriving:
    """An answer, as far as it has arrived.

    ``read`` parses an event, and ``hear`` is called with the resulting delta. ``unheard`` is the exception that
    ``hear`` raised. ``logprobs`` are kept as JSON if they were requested; ``None``: they were not requested.
    """

    account: ProviderAccount
    hear: Hear
    read: Callable[["Arriving", Mapping[str, Any]], Delta]
    text: list[str] = field(factory=list)
    unseen: int = 0  # characters
    calls: list[ToolCall] = field(factory=list)
    usage: Usage | None = None
    finish: FinishReason | None = None
    model: str | None = None
    unheard: Exception | None = None
    logprobs: list[str] | None = None
    _logprobs_size: int = 0  # characters
    _events: "Events" = field(factory=lambda: Events())
    _halves: list[HalfCall] = field(factory=list)
    _half: dict[tuple[int | None, str], HalfCall] = field(factory=dict)  # the latest with that index; "": any id
    _arguments: int = 0  # characters

    def feed(self, chunk: bytes) -> Iterator[None]:
        """Parse a chunk of the stream; yields after every line."""
        for data in self._events.feed(chunk):
            if data is not None and data != b"[DONE]":
                self._take(data)
            yield

    def call(self, call: ToolCall) -> None:
        """Add a complete tool call."""
        self.calls.append(call)
        self._count_calls()

    def piece_of_call(self, index: int | None, id_: str, name: str, arguments: str) -> None:
        """Append a piece to the tool call it belongs to.

        Some servers don't number the calls and some give all of them the same number: then the id tells them apart.
        """
        half = self._half.get((index, id_))
        if half is None or (index is None and name):
            half = self._half[index, ""] = self._half[index, id_] = HalfCall(id_)
            self._halves.append(half)
            self._count_calls()
        half.name = half.name or name
        half.arguments.append(arguments)
        self._arguments += len(arguments)
        if self._arguments > MOST_AT_ONCE:
            raise Nonsense(f"called tools with more than {MOST_AT_ONCE >> 20} MiB of arguments")

    def take_logprobs(self, entries: object) -> None:
        """Keep logprobs as JSON: as Python values they would take ten times the memory."""
        if self.logprobs is not None and isinstance(entries, list) and entries:
            self.logprobs.append(compact(entries)[1:-1])
            self._logprobs_size += len(self.logprobs[-1])
            if self._logprobs_size > MOST_LOGPROBS:
                raise Nonsense(f"sent more than {MOST_LOGPROBS >> 20} MiB of logprobs")

    def answer(self, question: Question) -> Answer:
        """The complete answer; raises :class:`Failing` if the stream ended early."""
        if self.finish is None:
            raise Failing(f"{self.account.vendor} broke off its answer")
        text = "".join(self.text)
        calls = [*self.calls, *self._completed()]
        finish: FinishReason = "tool_calls" if calls and self.finish == "stop" else self.finish
        usage = self.usage or Usage(guessed_input(question), guessed(len(text) + self.unseen))
        logprobs = None if self.logprobs is None else f"[{','.join(self.logprobs)}]".encode()
        return Answer(text, usage, finish, self.model or question.model, tuple(calls), logprobs)

    def _take(self, data: bytes) -> None:
        event = _parsed(data)
        if not isinstance(event, dict):
            raise Nonsense("sent an event that is no JSON object")
        delta = self.read(self, event)
        if delta.text:
            self.text.append(delta.text)
        self.unseen += delta.unseen
        self.usage = delta.usage or self.usage
        try:
            self.hear(delta)
        except Exception as error:
            self.unheard = error
            raise

    def _count_calls(self) -> None:
        if len(self.calls) + len(self._halves) > MOST_CALLS:
            raise Nonsense(f"called more than {MOST_CALLS} tools at once")

    def _completed(self) -> Iterator[ToolCall]:
        for half in self._halves:
            arguments = _arguments("".join(half.arguments))
            if arguments is not None:
                yield ToolCall(half.id or new_id(), half.name, arguments)
            elif self.finish != "length":  # with "length" the last call is cut off, and a retry would cut it off again
                name = self.account.clean(half.name) or "a tool"
                raise Failing(f"{self.account.vendor} called {name} with arguments that are no JSON object")


@define(eq=False)
class Events:
    """Parser of server-sent events; chunks may be split anywhere."""

    _line: list[bytes] = field(factory=list)  # pieces of a line that hasn't ended
    _data: list[bytes] = field(factory=list)
    _size: int = 0  # of the event
    _all: int = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield once per line: the data of an event if the line ends one, else ``None``.

        Only line feeds end lines: JSON may contain the other line separators of Unicode.
        """
        self._all += len(chunk)
        if self._all > MOST:
            raise Nonsense(f"answers without an end: more than {MOST >> 20} MiB")
        first, *others = chunk.split(b"\n")
        self._grow(first)
        for piece in others:
            line = b"".join(self._line).removesuffix(b"\r")
            self._line.clear()
            yield self._end(line)
            self._grow(piece)

    def _grow(self, piece: bytes) -> None:
        self._line.append(piece)
        self._size += len(piece) + 1
        if self._size > MOST_AT_ONCE:
            raise Nonsense(f"sent an event of more than {MOST_AT_ONCE >> 20} MiB")

    def _end(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        if line:
            return None
        data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return data or None


def words(said: object, what: str) -> str:
    """A text field of the vendor's response; "" if absent."""
    if not said:
        return ""
    if not isinstance(said, str):
        raise Nonsense(f"sent {what} that is no text")
    return said


def _parsed(data: bytes) -> object:
    if _brackets(data) > MOST_INSIDE and _brackets(outside_strings(data)) > MOST_INSIDE:
        raise Nonsense(f"sent more than {MOST_INSIDE} arrays and objects at once")
    return codec.parse(data)


def _brackets(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _arguments(text: str) -> Mapping[str, Any] | None:
    """Parse the arguments of a tool call; ``None`` if they can't be used for a call."""
    try:
        arguments = _parsed(text.encode() or b"{}")
    except (ValueError, Nonsense):  # also for half of a surrogate pair
        return None
    if not isinstance(arguments, dict) or (text.count("[") + text.count("{") > DEEPEST and _too_deep(arguments)):
        return None
    return arguments


def _too_deep(value: Mapping[str, Any]) -> bool:
    level: Sequence[Any] = [value]
    for _ in range(DEEPEST):
        within = (inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
        level = [inner for inner in within if isinstance(inner, dict | list)]
    return bool(level)


def new_id() -> str:
    """A generated id for a tool call to which the vendor gave none."""
    return OURS + secrets.token_hex(8)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
