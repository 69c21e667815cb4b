"""From the bytes of a body to the request that they are."""

import gc
from collections.abc import Collection, Mapping
from functools import cache
from typing import TypeVar

import attrs
import msgspec
import trio

from agentos_sdk import codec
from agentos_sdk.codec import Invalid
from agentos_sdk.errors import BadRequest
from agentos_sdk.nesting import outside_strings
from agentos_sdk.strict import written

from .caller import Caller

T = TypeVar("T")

INLINE = 64 << 10  # bytes of the largest body that the event loop reads itself: at most 2 ms, a thread costs 0.1
LARGE_TEXT = 256 << 10  # bytes of a body from which on counting comes first, and what it may have besides text
MOST_ESCAPES = 1 << 20  # backslashes: at each of them a reader stops copying
LONGEST = 200  # digits of a number: with an exponent of two digits it is still below 1e308, the largest float
SHOWN = 200  # characters of a parser's error message, which may quote a key
_SHAPES = bytes.maketrans(b"123456789E-", b"000000000e+")


class Verbatim(bytes):
    """JSON that is passed on as it came: known to be well-formed, and never made into values here."""


def read(request: type[T], body: bytes, verbatim: Collection[str] = ()) -> T:
    """The request that ``body`` is, empty standing for ``{}``; ``BadRequest`` names the field that is wrong.

    Fields in ``verbatim`` become :class:`Verbatim`. To make a MiB of small arrays into values, to write them again and
    to throw them away takes 0.2 s, in which nobody else is served; to see that they are JSON takes 2 ms. A body of more
    than ``INLINE`` bytes (see :class:`Reader`) is refused where the work is out of proportion: numbers that need a
    closer look, half surrogate pairs, or more arrays and objects than ``codec.CROWD`` in what isn't verbatim.
    """
    try:
        sifted = verbatim or len(body) > INLINE
        data = (_sift(request, body, verbatim) if sifted else codec.parse(body)) if body else {}
        return codec.decode(request, data)
    except Invalid as error:
        raise BadRequest(str(error)) from None


@attrs.frozen
class Reader:
    """Reads bodies: small ones at once, large ones in one thread for all callers.

    Several threads at once would slow down each other and the event loop. A caller has one body at a time in that
    thread's queue: its other connections wait behind each other, and not others behind them.
    """

    _thread: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def read(self, caller: Caller, request: type[T], body: bytes, verbatim: Collection[str] = ()) -> T:
        """As :func:`read`, without holding up the event loop."""
        if len(body) <= INLINE:
            return read(request, body, verbatim)
        async with caller.turn:
            return await trio.to_thread.run_sync(read, request, body, verbatim, limiter=self._thread)


def _sift(request: type, body: bytes, verbatim: Collection[str]) -> object:
    codec.checked_text(body)
    try:
        fields = _fields(request, body)
        refusal = f"a number has {LONGEST} digits or an exponent of three" if _is_extreme(body) else ""
    except (msgspec.DecodeError, RecursionError) as error:
        half = ", or has half a surrogate pair" if rb"\ud" in body or rb"\uD" in body else ""
        fields, refusal = {}, f"not JSON{half}: {str(error)[:SHOWN]}"
        if isinstance(error, msgspec.ValidationError):  # it is JSON so far
            refusal = str(error)[:SHOWN]
    if not refusal:
        return {
            name: Verbatim(value) if name in verbatim else _parse(bytes(value), len(body) > INLINE)
            for name, value in fields.items()
        }
    if len(body) > INLINE:
        raise BadRequest(f"{refusal} (in a body of more than {INLINE >> 10} KiB)")
    data = codec.parse(body)  # the long way: it says what is wrong, or finds that nothing is
    if not isinstance(data, dict):
        return data
    return {name: Verbatim(codec.encode(value)) if name in verbatim else value for name, value in data.items()}


def _fields(request: type, body: bytes) -> Mapping[str, msgspec.Raw]:
    """The fields of a JSON object as they stand there; nothing is made of those that the request doesn't have."""
    found = _shape(request).decode(body)
    return {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not msgspec.UNSET}


@cache
def _shape(request: type) -> msgspec.json.Decoder[msgspec.Struct]:
    fields = [(written(each.name), msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for each in attrs.fields(request)]
    return msgspec.json.Decoder(msgspec.defstruct(request.__name__, fields, forbid_unknown_fields=True))


def _parse(data: bytes, large: bool) -> object:
    """One field's value, which is well-formed JSON."""
    if not large:
        return codec.parse(data)
    if data.count(b"[") + data.count(b"{") > codec.CROWD:
        brackets = outside_strings(data)
        if brackets.count(b"[") + brackets.count(b"{") > codec.CROWD:
            raise _unreadable(f"more than {codec.CROWD} arrays and objects in it")
    return _values(data)


def _is_extreme(body: bytes) -> bool:
    """Whether there is a number that not every reader can hold; at most 10 ms for 1 MiB, in short steps."""
    return _looks_extreme(body) and _looks_extreme(outside_strings(body))


def _looks_extreme(data: bytes) -> bool:
    shapes = data.translate(_SHAPES)
    return b"e000" in shapes or b"e+000" in shapes or b"0" * LONGEST in shapes


def read_text(request: type[T], body: bytes) -> T:
    """As :func:`read`, of a body that may be large and is mostly text. A large one takes a thread."""
    try:
        return codec.decode(request, parse_text(body))
    except Invalid as error:
        raise BadRequest(str(error)) from None


def parse_text(body: bytes) -> object:
    """JSON that is mostly text; raises ``Invalid``.

    Each step takes 20 ms for 16 MiB, in which nobody else is served, thread or not. So what would take longer, or
    become gigabytes, is refused by counting, before it is read.
    """
    if len(body) <= LARGE_TEXT:
        return codec.parse(body)
    crowded = body.count(b'"') - body.count(rb"\"") > LARGE_TEXT
    if not crowded and body.count(b",") > LARGE_TEXT:
        crowded = len(outside_strings(body)) > LARGE_TEXT
    if body.count(b"\\") > MOST_ESCAPES:
        raise _unreadable(f"more than {MOST_ESCAPES} escapes in it: write text in UTF-8")
    if crowded:
        raise _unreadable(f"all in it that isn't plain text may have no more than {LARGE_TEXT >> 10} KiB")
    data = _values(body)
    if codec.is_deeper(data, codec.MAX_DEPTH):
        raise _unreadable(f"nested deeper than {codec.MAX_DEPTH}")
    return data


def _values(data: bytes) -> object:
    """JSON as values, faster than the standard library makes them; raises ``Invalid``."""
    pause = gc.isenabled()  # the collector would walk what is made again and again while it grows
    gc.disable()
    try:
        made: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(f"not JSON: {error}") from None
    except RecursionError:
        raise _unreadable(f"nested deeper than {codec.MAX_DEPTH}") from None
    finally:
        if pause:
            gc.enable()
    return made


def _unreadable(sentence: str) -> Invalid:
    return Invalid([codec.Mistake("", sentence)])
