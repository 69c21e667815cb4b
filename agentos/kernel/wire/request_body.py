"""Request bodies: parses JSON bytes into typed requests and limits how long that may take."""

import gc
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TypeVar, TypeVarTuple, Unpack

import attrs
import msgspec

from agentos.kernel.caller import Caller
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.codec import Invalid
from agentos_sdk.encoding.nesting import MAX_DIGITS, count_containers, has_extreme_number, remove_strings
from agentos_sdk.encoding.strict import wire_name
from agentos_sdk.errors import BadRequest

T = TypeVar("T")
Args = TypeVarTuple("Args")

MAX_INLINE_BYTES = 64 << 10  # bytes: larger bodies are read in a thread, which costs 0.1 ms; these take at most 2 ms
LARGE_TEXT_BYTES = 256 << 10  # bytes: larger bodies are checked by counting first; also their limit for non-text
COUNTED_BYTES = 1 << 20  # bytes searched at a time, in 1 ms
MAX_ESCAPES = 1 << 20  # backslashes: the parser stops copying at each of them
MAX_MESSAGE_CHARS = 200  # characters of a parser's error message, which may quote a key


def read(request: type[T], body: bytes, verbatim: Collection[str] = ()) -> T:
    """Parse ``body`` into a request; an empty body means ``{}``. Raises ``BadRequest``, which names the wrong field.

    Fields in ``verbatim`` become ``msgspec.Raw``: JSON that is passed on as it is. Converting 1 MiB of small arrays to
    values, encoding them again and freeing them takes 0.2 s and blocks all other calls; checking that they are JSON
    takes 2 ms. A body of more than ``MAX_INLINE_BYTES`` (see :class:`Reader`) is refused if it is disproportionately
    expensive: numbers that need a closer check, half surrogate pairs, or more than ``codec.GC_PAUSE_THRESHOLD`` arrays
    and objects outside verbatim fields.
    """
    try:
        if len(body) <= MAX_INLINE_BYTES:
            return codec.read(request, body or b"{}", verbatim)
        return codec.decode(request, _sift(request, body, verbatim))
    except Invalid as error:
        raise BadRequest(str(error)) from None


@attrs.frozen
class Reader:
    """Parses request bodies: small ones at once, large ones in one worker thread that all callers share.

    Several threads at once would slow down each other and the event loop. Each caller has at most one body in that
    thread's queue: further connections of the same caller wait for it, other callers do not.
    """

    _thread: Limiter = attrs.field(factory=lambda: Limiter(1), init=False)

    async def read(self, caller: Caller, body: bytes, request: type[T], verbatim: Collection[str] = ()) -> T:
        """Parse like :func:`read` without blocking the event loop."""
        if len(body) <= MAX_INLINE_BYTES:
            return read(request, body, verbatim)
        return await self.run(caller, read, request, body, verbatim)

    async def run(self, caller: Caller, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Call a function that reads a large body, or a large part of one, in that thread when it is its turn."""
        async with caller.turn:
            return await run_in_thread(function, *args, limiter=self._thread)


def _sift(request: type, body: bytes, verbatim: Collection[str]) -> Mapping[str, object]:
    """The fields of a large body."""
    codec.check_text(body)
    try:
        fields = _fields(request, body)
        refusal = f"a number has {MAX_DIGITS} digits or an exponent of three" if has_extreme_number(body) else ""
    except (msgspec.DecodeError, RecursionError) as error:
        half = ", or has half a surrogate pair" if rb"\ud" in body or rb"\uD" in body else ""
        fields, refusal = {}, f"not JSON{half}: {str(error)[:MAX_MESSAGE_CHARS]}"
        if isinstance(error, msgspec.ValidationError):  # well-formed JSON up to this point
            refusal = str(error)[:MAX_MESSAGE_CHARS]
    if refusal:
        raise BadRequest(f"{refusal} (in a body of more than {MAX_INLINE_BYTES >> 10} KiB)")
    return {name: value if name in verbatim else _parse(bytes(value)) for name, value in fields.items()}


def _fields(request: type, body: bytes) -> Mapping[str, msgspec.Raw]:
    """The fields of a JSON object as raw JSON. An unknown field is an error and is not parsed."""
    found = _shape(request).decode(body)
    return {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not msgspec.UNSET}


@cache
def _shape(request: type) -> msgspec.json.Decoder[msgspec.Struct]:
    fields = [(wire_name(each.name), msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for each in attrs.fields(request)]
    return msgspec.json.Decoder(msgspec.defstruct(request.__name__, fields, forbid_unknown_fields=True))


def _parse(data: bytes) -> object:
    """Parse the value of one field of a large body; it is well-formed JSON."""
    if count_containers(data, codec.GC_PAUSE_THRESHOLD) > codec.GC_PAUSE_THRESHOLD:
        raise _unreadable(f"more than {codec.GC_PAUSE_THRESHOLD} arrays and objects in it")
    return parse_values(data)


def read_text(request: type[T], body: bytes) -> T:
    """Parse like :func:`read` a body that may be large and is mostly text. Call it in a thread for large bodies."""
    try:
        if len(body) <= LARGE_TEXT_BYTES:
            return codec.read(request, body)
        return codec.decode(request, parse_text(body))
    except Invalid as error:
        raise BadRequest(str(error)) from None


def read_chunk(kind: type[T], body: bytes) -> T:
    """Parse the body of a CHUNK frame that a client has sent; raises ``BadRequest``."""
    try:
        return codec.read(kind, body)
    except Invalid as error:
        raise BadRequest(f"CHUNK: {error}") from None


def parse_text(body: bytes) -> object:
    """Parse JSON that is mostly text; raises ``Invalid``.

    Parsing 16 MiB takes 13 ms and holds up everything else, in a thread or not. Input that would take longer or expand
    to gigabytes is therefore detected by counting characters and refused before it is parsed.
    """
    if len(body) <= LARGE_TEXT_BYTES:
        return codec.parse(body)
    crowded = _count(body, b'"') - _count(body, rb"\"") > LARGE_TEXT_BYTES
    if not crowded and _count(body, b",") > LARGE_TEXT_BYTES:
        crowded = len(remove_strings(body)) > LARGE_TEXT_BYTES
    if _count(body, b"\\") > MAX_ESCAPES:
        raise _unreadable(f"more than {MAX_ESCAPES} escapes in it: write text in UTF-8")
    if crowded:
        raise _unreadable(f"all in it that isn't plain text may have no more than {LARGE_TEXT_BYTES >> 10} KiB")
    data = parse_values(body)
    if codec.is_deeper(data, codec.MAX_DEPTH):
        raise _unreadable(f"nested deeper than {codec.MAX_DEPTH}")
    return data


def _count(body: bytes, what: bytes) -> int:
    """Count in pieces, so that other threads can run."""
    return sum(body.count(what, at, at + COUNTED_BYTES + len(what) - 1) for at in range(0, len(body), COUNTED_BYTES))


def parse_values(data: bytes) -> object:
    """Convert JSON to values faster than the standard library; raises ``Invalid``."""
    pause = gc.isenabled()  # otherwise the garbage collector traverses the growing result again and again
    gc.disable()
    try:
        values: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(f"not JSON: {error}") from None
    except RecursionError:
        raise _unreadable(f"nested deeper than {codec.MAX_DEPTH}") from None
    finally:
        if pause:
            gc.enable()
    return values


def _unreadable(sentence: str) -> Invalid:
    return Invalid([codec.Mistake("", sentence)])
