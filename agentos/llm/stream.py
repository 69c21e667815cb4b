"""Parser for streamed LLM responses: assembles the answer from server-sent events.

A complete answer is kept whatever its wrapping: events that are no JSON are passed over, a body that is one JSON value
is read as its events, and an answer that says that it is over has ended. The sending server is not trusted: sizes,
counts and nesting depth are limited.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import define, field
from msgspec.structs import replace

from agentos.http.sse import FIELD_NAMES, EventParser
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.characters import ends_in_half, join_surrogates
from agentos_sdk.encoding.nesting import remove_strings
from agentos_sdk.values import Usage

from .answers.called_tools import CalledTools, index_of
from .answers.finish_reasons import FAILURES, FINISH_REASONS, MALFORMED_CALL, NOT_YET, plain_word
from .answers.malformed import MalformedResponse, parse_json
from .answers.vendor_errors import find_error, may_pass, message_of, plain_text, status_of
from .providers.account import ErrorOfStatus, ProviderAccount
from .providers.provider import (
    Answer,
    Delta,
    Failing,
    FinishReason,
    MalformedCall,
    OnDelta,
    ProviderError,
    Question,
    answered_by,
    estimate_input_tokens,
    estimate_tokens,
)

MAX_STREAM = 64 << 20  # bytes of a stream; most of a long answer is the JSON envelopes around its text
MAX_LOGPROBS = 16 << 20  # characters of JSON
MAX_OTHERS = 8  # kinds of parts that are named


@define(eq=False)
class AnswerBuilder:
    """An answer, as far as it has arrived.

    ``parse_event`` parses an event, and ``on_delta`` is called with the resulting delta. ``error_of_status`` makes the
    error of an event that is one. ``holder`` is the field of an answer that holds its text. ``callback_error`` is the
    exception that ``on_delta`` raised. ``logprobs`` are kept as JSON if they were requested, else ``None``. ``ended``:
    the stream has said that nothing follows.
    """

    account: ProviderAccount
    on_delta: OnDelta
    parse_event: Callable[["AnswerBuilder", Mapping[str, Any]], Delta]
    error_of_status: ErrorOfStatus
    holder: str
    text: list[str] = field(factory=list)
    unseen: int = 0  # characters
    calls: CalledTools = field(factory=CalledTools)
    usage: Usage | None = None
    finish: FinishReason | None = None
    model: str | None = None
    callback_error: Exception | None = None
    logprobs: list[str] | None = None
    ended: bool = False
    _others: dict[str, None] = field(factory=dict)  # kinds of parts that an answer has no place for
    _unknown_finish: str | None = None  # the vendor's word, if no table has it
    _remark: str = ""  # the first text that is neither an event nor JSON
    _is_over: bool = False  # no chunk follows
    _body: bytes = b""  # a whole body that is no stream
    _has_other_choices: bool = False
    _half: str = ""  # the first half of a surrogate pair, of which the second may follow
    _logprobs_size: int = 0  # characters
    _events: EventParser = field(factory=lambda: EventParser(MalformedResponse, MAX_STREAM))

    def feed(self, chunk: bytes) -> Iterator[None]:
        """Parse a chunk of the stream; yields after every line."""
        for data in self._events.feed(chunk):
            if data:
                self._take(data, self._events.name)
            yield

    def end(self) -> None:
        """The stream is over: parse an event without a final blank line, and what was no event at all."""
        self._is_over = True
        for _ in self.feed(b"\n\n"):
            pass
        rest = b"" if self.ended else self._events.stray.strip()
        if not any(name.startswith(rest) for name in FIELD_NAMES):  # as "dat" of a stream that was cut
            self._take(rest, "")
            self._body = b"" if is_cut(rest) else rest
        if self._half:
            half, self._half = self._half, ""
            self._hear(Delta(join_surrogates(half)))

    def first_of(self, choices: Any) -> Mapping[str, Any]:
        """The first of an event's choices, empty without it: some servers send several, though one was asked for."""
        for choice in choices or ():
            if (index_of(choice.get("index")) or 0) <= 0:
                found: Mapping[str, Any] = choice
                return found
            self._has_other_choices = True
        return {}

    def pass_over(self, kind: object) -> None:
        """A part of this kind, such as an image, has no place in an answer: an answer of nothing else is refused."""
        if isinstance(kind, str) and len(self._others) < MAX_OTHERS:
            self._others[kind] = None

    def end_stream(self) -> None:
        """Nothing follows; what has arrived is the answer."""
        self.ended = True
        if self.finish is None and self.has_any:
            self.finish = "stop"

    def end_with(self, word: str) -> None:
        """The answer has ended for this reason of the vendor's; raises :class:`Failing` if it was broken off."""
        plain = plain_word(word)
        if plain in NOT_YET:
            return
        if MALFORMED_CALL in word.lower():
            raise MalformedCall(self.account.vendor, f" ({self.account.clean_message(word)})")
        if plain in FAILURES:
            raise Failing(f"{self.account.vendor} ended its answer with {plain}")
        self._unknown_finish = None if plain in FINISH_REASONS else self.account.clean_message(word)
        if self.finish != "content_filter":
            self.finish = FINISH_REASONS.get(plain, "stop")

    @property
    def has_any(self) -> bool:
        """Whether any part of an answer has arrived."""
        return bool(self.text or self.calls)

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
            said = self.account.clean_message(self._remark)
            if said and not self.has_any:
                raise self.account.unforeseen(f"answered what is no answer of a model: {said}")
            if (self.ended or self._body) and not (self.has_any or self.unseen):
                of = " with index 0" if self._has_other_choices else ""
                body = self.account.clean_message(self._body.decode(errors="replace"))
                what = f'answered without a text, a call or an end in "{self.holder}"{of}'
                raise self.account.unforeseen(f"{what}: {body}" if body else what)
            raise Failing(f"{self.account.vendor} broke off its answer")
        if self._unknown_finish is not None and not self.has_any:
            raise self.account.unforeseen(f"ended its answer with {self._unknown_finish}")
        if self._others and not self.has_any and self.finish != "content_filter":
            kinds = self.account.clean_message(", ".join(self._others))
            raise self.account.unforeseen(f"answered with nothing but {kinds}, which an agent can't be given")
        text = "".join(self.text)
        calls = tuple(self.calls.finish())
        finish: FinishReason = "tool_calls" if calls and self.finish == "stop" else self.finish
        usage = self.usage or Usage(estimate_input_tokens(question), estimate_tokens(len(text) + self.unseen))
        logprobs = None if self.logprobs is None else f"[{','.join(self.logprobs)}]".encode()
        return Answer(text, usage, finish, answered_by(self.model, question), calls, logprobs)

    def _take(self, data: bytes, name: str) -> None:
        """Take the data of an event, or a body that is no event."""
        if self.ended:
            return
        if data.strip() == b"[DONE]":
            self.end_stream()
            return
        try:
            value = parse_json(data)
        except codec.Invalid as error:
            self._take_text(data, name, error)
            return
        for event in value if isinstance(value, list) else [value]:
            if isinstance(event, dict):
                self._apply_event(event, name)
            elif name == "error":
                raise self._error_of({"message": event})
            elif event is not value:
                raise MalformedResponse("sent an array that is no answer")

    def _take_text(self, data: bytes, name: str, error: codec.Invalid) -> None:
        """Take what is no JSON: several values, each on a line of its own, or a text of the server's."""
        lines = data.split(b"\n")
        if len(lines) > 1 and all(line.strip()[:1] in b"{[" for line in lines):
            for line in filter(bytes.strip, lines):
                self._take(line, name)
            return
        looks_like_json = data.lstrip().startswith((b"{", b"["))
        if self.finish is not None or (looks_like_json and self._is_over and is_cut(data)):
            return  # the answer is complete, or broken off
        text = plain_text(data.decode(errors="replace"))
        if name == "error":
            raise self._error_of({"message": text})
        if looks_like_json:
            raise MalformedResponse(f"sent an event that can't be read, {error}: {text}")
        self._remark = self._remark or text

    def _apply_event(self, event: Mapping[str, Any], name: str) -> None:
        error = find_error(event) or (event if name == "error" else None)
        if error is not None:
            if self.finish is not None:
                return  # the answer is complete
            raise self._error_of(error, event)
        self.calls.batch += 1
        delta = self.parse_event(self, event if "type" in event or not name else {"type": name, **event})
        text = self._half + delta.text
        if text != delta.text or not text.isascii():
            self._half = text[-1] if ends_in_half(text) else ""
            delta = replace(delta, text=join_surrogates(text.removesuffix(self._half)))
        self._hear(delta)

    def _hear(self, delta: Delta) -> None:
        if delta.text:
            self.text.append(delta.text)
        self.unseen += delta.unseen
        self.usage = delta.usage or self.usage
        try:
            self.on_delta(delta)
        except Exception as error:
            self.callback_error = error
            raise

    def _error_of(self, error: object, event: Mapping[str, Any] | None = None) -> ProviderError:
        """The error that a part of the stream says. One without a status is final unless its text says otherwise."""
        status = status_of(error) or (status_of(event) if event is not None else None)
        message = message_of(error)
        if status is None and not may_pass(message):
            return self.account.unforeseen(f"answers with an error: {self.account.clean_message(message)}")
        whole = event if event is not None and "error" in event else {"error": error}
        return self.error_of_status(status or 500, whole, None)


def text_field(value: object, what: str) -> str:
    """A text field of the vendor's response; "" if absent."""
    if not value:
        return ""
    if not isinstance(value, str):
        raise MalformedResponse(f"sent {what} that is no text")
    return value


def id_field(value: object) -> str:
    """The id of a call, also if it is a number; "" if absent."""
    return str(value) if type(value) is int else text_field(value, "an id")


def is_cut(data: bytes) -> bool:
    """Whether JSON, or what looks like it, ends in the middle of an array or an object."""
    outside = remove_strings(data)
    return outside.count(b"{") + outside.count(b"[") > outside.count(b"}") + outside.count(b"]")


def compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
