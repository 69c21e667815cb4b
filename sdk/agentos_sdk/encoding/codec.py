"""Strict conversion of JSON or TOML to typed values and back; a mistake names its field.

``parse`` and ``encode`` handle JSON. ``decode`` handles types: it takes the result of ``parse`` or ``tomllib`` and
converts nothing silently (``"5"`` is no number, ``true`` is no 1). It reads ``5s``, ``256M`` and ``50%`` for types that
allow them. ``read`` does both.
"""

import gc
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

import attrs
import msgspec

from agentos_sdk.encoding.nesting import has_extreme_number, is_nested_deeper
from agentos_sdk.encoding.quantities import CPU_PERIOD, CpuShare, Seconds, Size
from agentos_sdk.encoding.strict import CONVERTER, MAX_MISTAKES, Rule, Text, mistakes, quote, wire_name

__all__ = ["CpuShare", "Invalid", "Mistake", "Rule", "Seconds", "Size", "Text", "decode", "encode", "parse", "read"]

T = TypeVar("T")
S = TypeVar("S")

MAX_DEPTH = 64  # levels of nested arrays and objects
REPLY_DEPTH = MAX_DEPTH + 8  # in a reply or CHUNK what another caller has sent stands some levels deeper
GC_PAUSE_THRESHOLD = 10_000  # arrays and objects in one body, above which the garbage collector is paused
PIECE_ITEMS = 100  # items of an array that are encoded at a time: under 1 ms


@attrs.frozen
class Mistake:
    """What is wrong, and where: ``path`` for people (``children[1].restart``), ``keys`` for programs."""

    path: str
    message: str
    keys: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(ValueError):
    """The data doesn't match the type; ``mistakes`` lists all that were found."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        said = [str(mistake) for mistake in self.mistakes[:MAX_MISTAKES]]
        more = len(self.mistakes) - MAX_MISTAKES
        return "; ".join([*said, f"and {more} more"] if more > 0 else said)


def decode(cls: type[T], data: object, *, where: str = "") -> T:
    """Build a value of ``cls`` from dicts, lists and plain values; raises ``Invalid`` with all mistakes at once.

    ``where`` is the prefix of the mistakes' paths. A ``ValueError`` of the class itself counts as a mistake, too.
    """
    try:
        return CONVERTER.structure(data, cls)
    except ValueError as error:
        found = [Mistake(path(keys, where), message, keys) for keys, message in mistakes(error)]
        raise Invalid(found) from None


def path(keys: Sequence[str | int], where: str = "") -> str:
    """Keys as a path for people: ``supervisor.children[1].restart``."""
    for key in keys:
        if isinstance(key, int):
            where += f"[{key}]"
        elif _BARE_KEY.fullmatch(key):
            where += f".{key}" if where else key
        else:
            where += f"[{quote(key)}]"
    return where


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read(cls: type[T], data: bytes, raw: Collection[str] = ()) -> T:
    """Parse and decode JSON of ``cls``, an attrs class; raises ``Invalid`` with all mistakes.

    Its fields named in ``raw`` are JSON that is checked and kept as it is, as ``msgspec.Raw``.
    """
    return decode(cls, _parse_around(raw, data) if raw else parse(data))


def _parse_around(raw: Collection[str], data: bytes) -> object:
    """Parse an object whose values named in ``raw`` stay JSON."""
    _, containers = check_text(data)
    if not has_extreme_number(data):  # which msgspec would keep as JSON
        try:
            fields = _without_gc(containers, _RAW_DECODER.decode, data)
            return {name: value if name in raw else _DECODE(value) for name, value in fields.items()}
        except (ValueError, RecursionError):
            pass  # half a surrogate pair is allowed; for anything else the mistake is worded
    found = parse(data)
    if not isinstance(found, dict):
        return found
    return {name: msgspec.Raw(encode(value)) if name in raw else value for name, value in found.items()}


def parse(data: bytes, depth: int = MAX_DEPTH) -> object:
    """Parse strict JSON: UTF-8, finite numbers, at most ``depth`` levels of nesting.

    Raises ``Invalid`` with one sentence.
    """
    text, containers = check_text(data, depth)
    try:
        return _without_gc(containers, msgspec.json.decode, data)
    except (ValueError, RecursionError):
        # A call into Python for each of 16,000 numbers would take 10 ms.
        read = (_CAREFUL_DECODER if has_extreme_number(data) else _DECODER).decode
        return _without_gc(containers, partial(_parse_slowly, read), text)


def _parse_slowly(read: Callable[[str], object], text: str) -> object:
    """Parse what msgspec refuses: half a surrogate pair is allowed, for anything else the mistake is worded."""
    try:
        return read(text)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        at = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise _invalid_json(f"not JSON: {what} at byte {at}") from None
    except _BadNumber as error:
        raise _invalid_json(f"not JSON: {error}") from None
    except ValueError:
        raise _invalid_json("not JSON: a number has too many digits") from None
    except RecursionError:  # the caller's stack was nearly full
        raise _invalid_json("nested too deep to be read here") from None


def _without_gc(containers: int, read: Callable[[S], T], data: S) -> T:
    """Call ``read`` with the garbage collector paused if the data holds many arrays and objects.

    It would scan the growing objects again and again: 140 ms instead of 30 for 1 MiB of brackets.
    """
    pause = containers > GC_PAUSE_THRESHOLD and gc.isenabled()
    if pause:
        gc.disable()
    try:
        return read(data)
    finally:
        if pause:
            gc.enable()


def check_text(data: bytes, depth: int = MAX_DEPTH) -> tuple[str, int]:
    """JSON as text, and an upper bound on its arrays and objects; raises ``Invalid`` if it is always refused.

    That is the case if it isn't UTF-8 or is nested deeper than ``depth``. Other syntax isn't checked.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _invalid_json(f"not JSON: not UTF-8 at byte {error.start}") from None
    containers = data.count(b"[") + data.count(b"{")  # also an upper bound on the depth
    if containers > depth and is_nested_deeper(data, depth):
        raise _invalid_json(f"nested deeper than {depth}")
    return text, containers


def is_deeper(data: object, depth: int) -> bool:
    """Whether dicts and lists are nested deeper than ``depth``.

    Works level by level: a recursion's depth would be under the control of the data.
    """
    level = [data]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(value, dict | list) for value in level)


def encode(value: object) -> bytes:
    """Compact JSON of attrs values, mappings, sequences and plain JSON values; every field is written."""
    kind: Any = type(value)
    try:
        if kind is str:
            return _FAST_ENCODER.encode(value)
        if has_plain_fields(kind):
            return _FAST_ENCODER.encode(_fields_by_name(value))
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:  # a lone surrogate can't be UTF-8; JSON escapes it (\ud83d)
        return _ASCII_ENCODER.encode(value).encode()


def encode_pieces(value: object) -> Iterator[bytes]:
    """The result of :func:`encode` in pieces of ``PIECE_ITEMS`` items of a long sequence, also in an attrs field."""
    fields = _fields_by_name(value) if attrs.has(type(value)) else {}
    if any(_is_long(each) for each in fields.values()):
        before = b"{"
        for name, each in fields.items():
            yield before + encode(name) + b":"
            yield from encode_pieces(each)
            before = b","
        yield b"}"
    elif _is_long(value):
        for at in range(0, len(value), PIECE_ITEMS):
            yield (b"," if at else b"[") + encode(value[at : at + PIECE_ITEMS])[1:-1]
        yield b"]"
    else:
        yield encode(value)


def _is_long(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple) and len(value) > PIECE_ITEMS


class _BadNumber(ValueError):
    """A number that JSON doesn't have or a float can't hold."""


def _refuse_constant(name: str) -> object:
    raise _BadNumber(f"{name} is not a number")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _BadNumber("a number is too large")
    return number


def _invalid_json(sentence: str) -> Invalid:
    return Invalid([Mistake("", sentence)])


@cache
def _reader(cls: type) -> tuple[tuple[str, ...], Callable[[object], Any], tuple[str, ...]]:
    """The field names of a class, a getter for all fields at once, and the fields that are CPU shares."""
    fields = attrs.fields(attrs.resolve_types(cls))
    names = tuple(wire_name(field.name) for field in fields)
    shares = tuple(field.name for field in fields if CpuShare in (field.type, *get_args(field.type)))
    # Two extra entries, so that the getter returns a tuple even for a class without fields.
    return names, attrgetter(*(field.name for field in fields), "__class__", "__class__"), shares


def _fields_by_name(value: Any) -> dict[str, Any]:
    """The fields of an attrs value."""
    names, read, shares = _reader(value.__class__)
    fields = dict(zip(names, read(value), strict=False))
    for name in shares:
        if isinstance(fields[name], int | float):  # a bare number is in microseconds
            fields[name] *= CPU_PERIOD
    return fields


@cache
def has_plain_fields(kind: Any) -> bool:
    """Whether this is an attrs class and msgspec encodes all its fields like the standard library's ``json``."""
    return attrs.has(kind) and all(_is_plain(field.type) for field in attrs.fields(attrs.resolve_types(kind)))


def _is_plain(kind: Any) -> bool:
    """Not plain: floats (``1e-07`` becomes ``1e-7``, NaN ``null``), classes (another order), what may be anything."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return all(map(_is_plain, of))
    if origin in (Annotated, list, tuple, Sequence):
        return _is_plain(of[0])
    if origin in (dict, Mapping):
        return of[0] is str and _is_plain(of[1])
    return kind in (str, Text, int, Size, bool, NoneType) or origin is Literal


def _convert_unknown(value: object) -> object:
    """Convert what the JSON encoder doesn't know; the encoder continues with the result."""
    kind: type[Any] = type(value)
    if attrs.has(kind):
        return _fields_by_name(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(f"{kind.__name__} can't be written as JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_CAREFUL_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite)
_DECODE = msgspec.json.Decoder().decode
_RAW_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FAST_ENCODER = msgspec.json.Encoder(enc_hook=_convert_unknown)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_convert_unknown)
_ASCII_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_convert_unknown)
