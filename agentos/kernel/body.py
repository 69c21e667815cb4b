"""From the bytes of a body to the request that they are."""

import gc
import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

from agentos_sdk import codec
from agentos_sdk.codec import Invalid
from agentos_sdk.errors import BadRequest

T = TypeVar("T")

SMALL = 64 << 10  # bytes that may be read at leisure: some 2 ms
LARGE_TEXT = 256 << 10  # bytes of a body from which on counting comes first, and what it may have besides text
MOST_ESCAPES = 1 << 20  # backslashes: at each of them a reader stops copying
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
LONGEST = 400  # digits of a number; many a reader can't hold a longer one, nor one with an exponent of three digits
_EXPONENT = re.compile(rb"[eE][+-]?\d{3}")
_DIGITS = b"0123456789"
_APART = bytes(byte if byte in _DIGITS else 32 for byte in range(256))  # all but digits becomes a space


class Verbatim(bytes):
    """JSON that is passed on as it came: known to be well-formed, and never made into values here."""


def read(request: type[T], body: bytes, verbatim: Collection[str] = ()) -> T:
    """The request that ``body`` is, empty standing for ``{}``; ``BadRequest`` names the field that is wrong.

    Fields in ``verbatim`` become :class:`Verbatim`. To make a MiB of small arrays into values, to write them again and
    to throw them away takes 0.2 s, in which nobody else is served; to see that they are JSON takes 2 ms.
    """
    try:
        data = (_sift(body, verbatim) if verbatim else codec.parse(body)) if body else {}
        return codec.decode(request, data)
    except Invalid as error:
        raise BadRequest(str(error)) from None


def _sift(body: bytes, verbatim: Collection[str]) -> object:
    codec.checked_text(body)
    extreme = _is_extreme(body) and _is_extreme(codec.outside_strings(body))
    try:
        fields = {} if extreme else _split(body)
    except (msgspec.DecodeError, RecursionError):
        extreme, fields = True, {}
    if not extreme:
        return {
            name: Verbatim(value) if name in verbatim else codec.parse(bytes(value)) for name, value in fields.items()
        }
    if len(body) > SMALL:
        raise BadRequest("not JSON, or with numbers or strings in it that not every reader can hold")
    data = codec.parse(body)  # the long way: it says what is wrong, or finds that nothing is
    if not isinstance(data, dict):
        return data
    return {name: Verbatim(codec.encode(value)) if name in verbatim else value for name, value in data.items()}


def _is_extreme(data: bytes) -> bool:
    """Whether there may be a number that not every reader can hold; 1 to 12 ms for 1 MiB."""
    if len(data) - len(data.translate(None, _DIGITS)) < 3:
        return False
    longest = max(map(len, data.translate(_APART).split()), default=0)
    return longest >= LONGEST or _EXPONENT.search(data) is not None


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
        crowded = len(codec.outside_strings(body)) > LARGE_TEXT
    if body.count(b"\\") > MOST_ESCAPES:
        raise _unreadable(f"more than {MOST_ESCAPES} escapes in it: write text in UTF-8")
    if crowded:
        raise _unreadable(f"all in it that isn't plain text may have no more than {LARGE_TEXT >> 10} KiB")
    pause = gc.isenabled()  # the collector would walk what is made again and again while it grows
    gc.disable()
    try:
        data: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(f"not JSON: {error}") from None
    except RecursionError:
        raise _unreadable(f"nested deeper than {codec.MAX_DEPTH}") from None
    finally:
        if pause:
            gc.enable()
    if codec.is_deeper(data, codec.MAX_DEPTH):
        raise _unreadable(f"nested deeper than {codec.MAX_DEPTH}")
    return data


def _unreadable(sentence: str) -> Invalid:
    return Invalid([codec.Mistake("", sentence)])
