"""Parser for streamed LLM responses: splits server-sent events and assembles the answer from them.

The sending server is not trusted: sizes, counts and nesting depth are limited.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from agentos_sdk import codec
from agentos_sdk.nesting import remove_strings
from agentos_sdk.values import ToolCall, Usage

from .providers.account import ProviderAccount
from .providers.provider import (
    Answer,
    Delta,
    Failing,
    FinishReason,
    MalformedCall,
    OnDelta,
    Question,
    estimate_input_tokens,
    estimate_tokens,
)

MAX_STREAM = 64 << 20  # bytes of a stream; most of a long answer is the JSON envelopes around its text
MAX_EVENT = 1 << 20  # bytes of one event, and characters of all tools' arguments: parsed without a pause
MAX_LOGPROBS = 16 << 20  # characters of JSON
MAX_CONTAINERS = 10_000  # arrays and objects in an event: a million of them would take a third of a second to parse
MAX_CALLS = 1000
MAX_ARGUMENT_DEPTH = (
    codec.MAX_DEPTH - 5
)  # nesting of a tool's arguments; a later request has to hold them when they are sent back
GENERATED_ID_PREFIX = "call-of-agentos-"  # prefix of the tool call ids that we generate when the vendor sent none


class MalformedResponse(Exception):
    """The response is malformed or exceeds a limit. The message is appended to the vendor's name."""


@define(eq=False)
class PartialCall:
    """A tool call of which arguments are still arriving, as pieces of JSON."""

    id: str
    name: str = ""
    arguments: list[str] = field(factory=list)


@define(eq=False)
class AnswerBuilder:
    """An answer, as far as it has arrived.

    ``parse_event`` parses an event, and ``on_delta`` is called with the resulting delta. ``callback_error`` is the
    exception that ``on_delta`` raised. ``logprobs`` are kept as JSON if they were requested, else ``None``.
    """

    account: ProviderAccount
    on_delta: OnDelta
    parse_event: Callable[["AnswerBuilder", Mapping[str, Any]], Delta]
    text: list[str] = field(factory=list)
    unseen: int = 0  # characters
    calls: list[ToolCall] = field(factory=list)
    usage: Usage | None = None
    finish: FinishReason | None = None
    model: str | None = None
    callback_error: Exception | None = None
    logprobs: list[str] | None = None
    _logprobs_size: int = 0  # characters
    _events: "EventParser" = field(factory=lambda: EventParser())
    _partial_calls: list[PartialCall] = field(factory=list)
    _partial_by_key: dict[tuple[int | None, str], PartialCall] = field(
        factory=dict
    )  # the latest with that index; "": any id
    _arguments: int = 0  # characters

    def feed(self, chunk: bytes) -> Iterator[None]:
        """Parse a chunk of the stream; yields after every line."""
        for data in self._events.feed(chunk):
            if data is not None and data != b"[DONE]":
                self._apply_event(data)
            yield

    def add_call(self, call: ToolCall) -> None:
        """Add a complete tool call."""
        self.calls.append(call)
        self._count_calls()

    def add_call_piece(self, index: int | None, id_: str, name: str, arguments: str) -> None:
        """Append a piece to the tool call it belongs to.

        Some servers don't number the calls and some give all of them the same number: then the id tells them apart.
        """
        partial = self._partial_by_key.get((index, id_))
        if partial is None or (index is None and name):
            partial = self._partial_by_key[index, ""] = self._partial_by_key[index, id_] = PartialCall(id_)
            self._partial_calls.append(partial)
            self._count_calls()
        partial.name = partial.name or name
        partial.arguments.append(arguments)
        self._arguments += len(arguments)
        if self._arguments > MAX_EVENT:
            raise MalformedResponse(f"called tools with more than {MAX_EVENT >> 20} MiB of arguments")

    def add_logprobs(self, entries: object) -> None:
        """Keep logprobs as JSON: as Python values they would take ten times the memory."""
        if self.logprobs is not None and isinstance(entries, list) and entries:
            self.logprobs.append(compact_json(entries)[1:-1])
            self._logprobs_size += len(self.logprobs[-1])
            if self._logprobs_size > MAX_LOGPROBS:
                raise MalformedResponse(f"sent more than {MAX_LOGPROBS >> 20} MiB of logprobs")

    def answer(self, question: Question) -> Answer:
        """The complete answer; raises :class:`Failing` if the stream ended early."""
        if self.finish is None:
            raise Failing(f"{self.account.vendor} broke off its answer")
        text = "".join(self.text)
        calls = [*self.calls, *self._finish_calls()]
        finish: FinishReason = "tool_calls" if calls and self.finish == "stop" else self.finish
        usage = self.usage or Usage(estimate_input_tokens(question), estimate_tokens(len(text) + self.unseen))
        logprobs = None if self.logprobs is None else f"[{','.join(self.logprobs)}]".encode()
        return Answer(text, usage, finish, self.model or question.model, tuple(calls), logprobs)

    def _apply_event(self, data: bytes) -> None:
        event = _parse_json(data)
        if not isinstance(event, dict):
            raise MalformedResponse("sent an event that is no JSON object")
        delta = self.parse_event(self, event)
        if delta.text:
            self.text.append(delta.text)
        self.unseen += delta.unseen
        self.usage = delta.usage or self.usage
        try:
            self.on_delta(delta)
        except Exception as error:
            self.callback_error = error
            raise

    def _count_calls(self) -> None:
        if len(self.calls) + len(self._partial_calls) > MAX_CALLS:
            raise MalformedResponse(f"called more than {MAX_CALLS} tools at once")

    def _finish_calls(self) -> Iterator[ToolCall]:
        for partial in self._partial_calls:
            arguments = _parse_arguments("".join(partial.arguments))
            if arguments is not None:
                yield ToolCall(partial.id or new_id(), partial.name, arguments)
            elif self.finish != "length":  # with "length" the last call is cut off, and a retry would cut it off again
                name = self.account.clean_message(partial.name) or "a tool"
                raise MalformedCall(self.account.vendor, name)


@define(eq=False)
class EventParser:
    """Parser of server-sent events; chunks may be split anywhere."""

    _line: list[bytes] = field(factory=list)  # pieces of a line that hasn't ended
    _data: list[bytes] = field(factory=list)
    _size: int = 0  # of the event
    _total_size: int = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield once per line: the data of an event if the line ends one, else ``None``.

        Only line feeds end lines: JSON may contain the other line separators of Unicode.
        """
        self._total_size += len(chunk)
        if self._total_size > MAX_STREAM:
            raise MalformedResponse(f"answers without an end: more than {MAX_STREAM >> 20} MiB")
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
        if self._size > MAX_EVENT:
            raise MalformedResponse(f"sent an event of more than {MAX_EVENT >> 20} MiB")

    def _end(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        if line:
            return None
        data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return data or None


def text_field(value: object, what: str) -> str:
    """A text field of the vendor's response; "" if absent."""
    if not value:
        return ""
    if not isinstance(value, str):
        raise MalformedResponse(f"sent {what} that is no text")
    return value


def _parse_json(data: bytes) -> object:
    if _count_brackets(data) > MAX_CONTAINERS and _count_brackets(remove_strings(data)) > MAX_CONTAINERS:
        raise MalformedResponse(f"sent more than {MAX_CONTAINERS} arrays and objects at once")
    return codec.parse(data)


def _count_brackets(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _parse_arguments(text: str) -> Mapping[str, Any] | None:
    """Parse the arguments of a tool call; ``None`` if they can't be used for a call."""
    try:
        arguments = _parse_json(text.encode() or b"{}")
    except (ValueError, MalformedResponse):  # also for partial of a surrogate pair
        return None
    if not isinstance(arguments, dict) or (
        text.count("[") + text.count("{") > MAX_ARGUMENT_DEPTH and _is_too_deep(arguments)
    ):
        return None
    return arguments


def _is_too_deep(value: Mapping[str, Any]) -> bool:
    level: Sequence[Any] = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        within = (inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
        level = [inner for inner in within if isinstance(inner, dict | list)]
    return bool(level)


def new_id() -> str:
    """A generated id for a tool call to which the vendor gave none."""
    return GENERATED_ID_PREFIX + secrets.token_hex(8)


def compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
