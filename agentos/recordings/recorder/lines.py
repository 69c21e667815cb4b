"""Makes the lines of a recording from calls, with secrets of the kernel marked. Runs in the thread that writes."""

import json
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import msgspec
from attrs import define

from agentos.access.think_request import ThinkRequest
from agentos.kernel.wire.replies import encode_error
from agentos.llm.cassettes.recorded_question import record_question
from agentos.llm.queue.request import ThinkResult
from agentos.recordings.format import (
    Differences,
    Json,
    encode_line,
    is_dear,
    keep_bytes,
    parse_json,
    read_body,
    read_question,
)
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import wire_name
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op, op_name

MIN_PART = 8  # characters of base64 that are taken for a secret
Secret = tuple[str, str]
"""The name and the value of a secret."""
BuildReply = Callable[[ThinkResult], object]


@define(eq=False)
class Seen:
    """A call that has ended, as the event loop saw it. Times are nanoseconds, ``began`` since the epoch.

    ``outcome`` is the reply, the error or, with ``answer`` alone, neither: the body is all that is known.
    """

    life: str
    op: int
    numbers: tuple[int, int]
    began: int
    took: int
    request: Any
    outcome: object
    answer: bytes | None
    chunks: Sequence[bytes] = ()
    size: int = 0  # bytes that it holds, about
    files: int = 0  # paths that it has changed, which are kept


@define(eq=False)
class LineMaker:
    """Makes lines. ``build_reply`` makes the body of an answer to THINK that wasn't sent by the wire."""

    build_reply: BuildReply
    list_secrets: Callable[[], Sequence[Secret]]

    def describe(self, seen: Seen) -> Json:
        """The call as its line has it; a question is whole."""
        line: Json = {
            "n": seen.numbers,
            "life": seen.life,
            "call": op_name(seen.op),
            "at": seen.began / 1e9,
            "ms": round(seen.took / 1e6, 3),
            "request": read_question(seen.request) if is_unread(seen) else describe_request(seen.request),
            "reply": self._describe_reply(seen),
        }
        if seen.chunks:
            line["chunks"] = [read_body(chunk) for chunk in seen.chunks]
        if seen.files:
            line["files"] = seen.files
        if line["reply"] is None:
            line["outcome"] = "cancelled"
        return line

    def _describe_reply(self, seen: Seen) -> Json | None:
        if seen.answer is not None:
            reply = read_body(seen.answer)
        elif isinstance(seen.outcome, CallError):
            reply = read_body(encode_error(seen.outcome))
        elif isinstance(seen.outcome, BaseException):
            return None
        else:
            built = self.build_reply(seen.outcome) if isinstance(seen.outcome, ThinkResult) else seen.outcome
            reply = read_body(codec.encode(built))
        if isinstance(seen.outcome, ThinkResult):
            answer = seen.outcome.answer
            if answer.logprobs is not None:
                reply["logprobs"] = json.loads(answer.logprobs)
            if answer.vectors:
                reply["vectors"] = [b64encode(vector).decode() for vector in answer.vectors]
        return reply

    def encode(self, line: Json, differences: Mapping[str, Differences]) -> bytes:
        """The line with its end; a question is shortened, and what is secret is marked."""
        if line["call"] == Op.THINK.name and "messages" in line["request"]:
            shortened = differences[line["life"]].shorten(line["n"][0], line["request"])
            line = {**line, "request": shortened}
        return self.mark_secrets(encode_line(line)) + b"\n"

    def mark_secrets(self, data: bytes) -> bytes:
        """JSON with a mark in the place of each value that the kernel holds; within base64 zero bytes are there."""
        named = enumerate(self.list_secrets(), 1)
        for number, (name, value) in sorted(named, key=lambda each: -len(each[1][1])):  # one may hold another
            inside = _escape(value)  # as it stands in a JSON text
            for text in (_escape(inside), inside):  # as it stands in one within it
                data = data.replace(text.encode(), f"⟦secret {number} {name}⟧".encode())
            for part in _in_base64(value):
                data = data.replace(part, b"A" * len(part))
        return data


def is_unread(seen: Seen) -> bool:
    """Whether it is a question whose body was refused unread, or couldn't be read."""
    return seen.op == Op.THINK and isinstance(seen.request, bytes)


def _escape(text: str) -> str:
    return encode_line({"": text})[5:-2].decode()


@lru_cache(maxsize=256)
def _in_base64(value: str) -> Collection[bytes]:
    """What stands in base64 wherever the value begins there, without the ends, which depend on what is beside it."""
    found = set[bytes]()
    for before in range(3):  # bytes of what comes first in the group that it begins in
        bits = 8 * (before + len(value.encode()))
        part = b64encode(bytes(before) + value.encode())[-(-8 * before // 6) : bits // 6]
        if len(part) >= MIN_PART:
            found |= {part, part.replace(b"+", b"-").replace(b"/", b"_")}
    return found


def describe_request(request: Any) -> Json:
    """A request that was read, or its body, as a line has it; a question is whole."""
    if isinstance(request, bytes):
        return read_body(request)
    if not isinstance(request, ThinkRequest):
        return _describe_record(request)
    question = request.question
    beside = {
        "max_tokens": question.max_tokens,
        "stream": request.stream or None,
        "timeout": request.timeout,
        "class": request.class_,
        "async": request.async_ or None,
    }
    return {**record_question(question), **{key: value for key, value in beside.items() if value is not None}}


def _describe_record(request: Any) -> Json:
    """A request as its body would be, without what it lacks."""
    names = request.__struct_fields__ if isinstance(request, msgspec.Struct) else attrs.fields_dict(type(request))
    found: Json = {}
    encoded: dict[str, bytes] = {}
    for name in names:
        value = getattr(request, name)
        if isinstance(value, bytes):  # of WRITE
            found |= _describe_data(value)
        elif value is not None:
            encoded[wire_name(name)] = bytes(value) if isinstance(value, msgspec.Raw) else codec.encode(value)
    if any(map(is_dear, encoded.values())):
        return keep_bytes(b"{%b}" % b",".join(b'"%b":%b' % (key.encode(), value) for key, value in encoded.items()))
    return found | {key: parse_json(value) for key, value in encoded.items()}


def _describe_data(data: bytes) -> Json:
    try:
        return {"content": data.decode()}
    except UnicodeDecodeError:
        return {"content": b64encode(data).decode(), "encoding": "base64"}
