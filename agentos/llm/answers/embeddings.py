"""Embeddings in a vendor's response: reads its body and decodes the vectors.

The sending server is not trusted: sizes and counts are limited. Vectors are decoded one by one, so that other threads
can run: all at once would hold the interpreter for up to a second.
"""

import math
from array import array
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from attrs import define, field
from msgspec import Raw, Struct

from agentos.llm.providers.provider import (
    Answer,
    OnDelta,
    Question,
    answered_by,
    counted_usage,
    estimate_input_tokens,
)
from agentos.structs import learn
from agentos_sdk.values import Usage

from .malformed import MalformedResponse
from .vectors import pack_vector, unpack_vector

T = TypeVar("T")

COUNTED_BYTES = 1 << 20  # bytes searched at a time, so that other threads can run
MAX_BODY = 32 << 20  # bytes of a response
MAX_OBJECTS = 100  # objects in a response besides two for each text: all are made at once
MAX_VECTOR = 256 << 10  # bytes of JSON of one vector


@define(eq=False)
class BodyReader:
    """Collects a response's body."""

    on_delta: OnDelta
    finish: None = None
    ended: bool = False
    callback_error: None = None
    _pieces: list[bytes] = field(factory=list)
    _size: int = 0

    def feed(self, chunk: bytes) -> Iterator[None]:
        self._size += len(chunk)
        if self._size > MAX_BODY:
            raise MalformedResponse(f"sent more than {MAX_BODY >> 20} MiB of embeddings")
        self._pieces.append(chunk)
        yield

    def end(self) -> None:
        """The body is complete."""

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)


class _OpenAIVector(Struct):
    embedding: Raw
    index: int = 0


class _OpenAIUsage(Struct):
    prompt_tokens: int | None = None


class _OpenAIBody(Struct):
    data: list[_OpenAIVector]
    model: str | None = None
    usage: _OpenAIUsage | None = None


class _GeminiVector(Struct):
    values: Raw


class _GeminiBody(Struct):
    embeddings: list[_GeminiVector]


def read_openai(body: bytes, question: Question) -> Answer:
    """The answer in a response of OpenAI's embeddings. Slow; raises :class:`MalformedResponse`."""
    found = _decode(body, question, _OpenAIBody)
    ordered = sorted(found.data, key=lambda each: each.index)
    used = counted_usage(found.usage.prompt_tokens if found.usage is not None else None)
    return _answer(question, [each.embedding for each in ordered], used, found.model)


def read_gemini(body: bytes, question: Question) -> Answer:
    """The answer in a response of Gemini's embeddings. Slow; raises :class:`MalformedResponse`."""
    return _answer(question, [each.values for each in _decode(body, question, _GeminiBody).embeddings], Usage(), None)


learn(_OpenAIBody, _GeminiBody)


def _decode(body: bytes, question: Question, kind: type[T]) -> T:
    objects = sum(body.count(b"{", at, at + COUNTED_BYTES) for at in range(0, len(body), COUNTED_BYTES))
    if objects > 2 * len(question.messages) + MAX_OBJECTS:
        raise MalformedResponse(f"sent {objects} objects as embeddings of {len(question.messages)} texts")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedResponse(f"sent embeddings that can't be read: {error}") from None


def _answer(question: Question, found: Sequence[Raw], used: Usage, model: str | None) -> Answer:
    if len(found) != len(question.messages):
        raise MalformedResponse(f"sent {len(found)} embeddings for {len(question.messages)} texts")
    usage = used if used.input else Usage(estimate_input_tokens(question))
    return Answer("", usage, "embedded", answered_by(model, question), vectors=[_vector(each) for each in found])


def _vector(found: Raw) -> bytes:
    """One vector as 32-bit floats, the lowest byte first: it may be base64 of them, or an array of numbers."""
    data = bytes(found)
    try:
        if len(data) > MAX_VECTOR:
            raise MalformedResponse(f"sent an embedding of more than {MAX_VECTOR >> 10} KiB")
        if data.startswith(b'"'):
            numbers = unpack_vector(a2b_base64(msgspec.json.decode(data, type=str)))
        else:
            numbers = array("f", msgspec.json.decode(data, type=list[float]))
    except (msgspec.DecodeError, Base64Error, ValueError, OverflowError) as error:
        raise MalformedResponse(f"sent an embedding that can't be read: {error}") from None
    if not numbers or not all(map(math.isfinite, numbers)):
        raise MalformedResponse("sent an embedding without numbers")
    return pack_vector(numbers)
