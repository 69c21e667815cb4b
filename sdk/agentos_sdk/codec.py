"""JSON or TOML to typed values and back, strictly; a mistake names its field.

``parse`` and ``encode`` know JSON, ``decode`` knows types: it takes what ``parse`` or ``tomllib`` made and
converts nothing silently (``"5"`` is no number, ``true`` is no 1), but reads ``5s``, ``256M`` and ``50%`` where a type
asks for them.
"""

import gc
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar, get_args

import attrs

from agentos_sdk.nesting import is_nested_deeper
from agentos_sdk.quantities import CPU_PERIOD, CpuShare, Seconds, Size
from agentos_sdk.strict import MANY, Rule, Text, mistakes, shown, strict_converter, written

__all__ = ["CpuShare", "Invalid", "Mistake", "Rule", "Seconds", "Size", "Text", "decode", "encode", "parse"]

T = TypeVar("T")

MAX_DEPTH = 64  # arrays and objects within each other
CROWD = 10_000  # arrays and objects in one body
STEP = 100  # items of an array that are written at a time: under 1 ms


@attrs.frozen
class Mistake:
    """What is wrong, and where: ``path`` for people (``children[1].restart``), ``keys`` for programs."""

    path: str
    message: str
    keys: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(ValueError):
    """The data isn't what the type asks for; ``mistakes`` are all that were found."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        said = [str(mistake) for mistake in self.mistakes[:MANY]]
        more = len(self.mistakes) - MANY
        return "; ".join([*said, f"and {more} more"] if more > 0 else said)


def decode(cls: type[T], data: object, *, where: str = "") -> T:
    """A value of ``cls`` out of dicts, lists and plain values; raises ``Invalid`` with all mistakes at once.

    ``where`` is what the mistakes' paths begin with. A ``ValueError`` of the class itself is a mistake too.
    """
    try:
        return _CONVERTER.structure(data, cls)
    except ValueError as error:
        found = [Mistake(path(keys, where), message, keys) for keys, message in mistakes(error)]
        raise Invalid(found) from None


def path(keys: Sequence[str | int], where: str = "") -> str:
    """``supervisor.children[1].restart``: keys as people write them."""
    for key in keys:
        if isinstance(key, int):
            where += f"[{key}]"
        elif _BARE_KEY.fullmatch(key):
            where += f".{key}" if where else key
        else:
            where += f"[{shown(key)}]"
    return where


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONVERTER = strict_converter()


def parse(data: bytes) -> object:
    """JSON as strict as its standard: UTF-8, finite numbers, and nothing nested deeper than 64.

    Raises ``Invalid`` with one sentence.
    """
    text, crowd = checked_text(data)
    # The collector would walk a crowd again and again while it grows: 140 ms instead of 30 for 1 MiB of brackets.
    pause = crowd > CROWD and gc.isenabled()
    if pause:
        gc.disable()
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        at = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise _unreadable(f"not JSON: {what} at byte {at}") from None
    except _BadNumber as error:
        raise _unreadable(f"not JSON: {error}") from None
    except ValueError:
        raise _unreadable("not JSON: a number has too many digits") from None
    except RecursionError:  # the caller's own stack was nearly full
        raise _unreadable("nested too deep to be read here") from None
    finally:
        if pause:
            gc.enable()


def checked_text(data: bytes) -> tuple[str, int]:
    """JSON as text, and how many arrays and objects it can hold at most; raises ``Invalid`` for what is never taken.

    That is what isn't UTF-8, and what is nested deeper than 64. Whether it is JSON at all is not looked at.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(f"not JSON: not UTF-8 at byte {error.start}") from None
    crowd = data.count(b"[") + data.count(b"{")  # nothing is nested deeper than this
    if crowd > MAX_DEPTH and is_nested_deeper(data, MAX_DEPTH):
        raise _unreadable(f"nested deeper than {MAX_DEPTH}")
    return text, crowd


def is_deeper(data: object, depth: int) -> bool:
    """Whether there are more than ``depth`` dicts and lists within each other.

    Level by level, for a recursion would end where the data wants it to.
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
    """Compact JSON of attrs values, mappings, sequences and what JSON knows itself; every field is written."""
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 can't hold: \ud83d is how JSON writes it
        return _ASCII_ENCODER.encode(value).encode()


def encode_pieces(value: object) -> Iterator[bytes]:
    """What :func:`encode` gives, in pieces: ``STEP`` items each of a long sequence, or of one in an attrs field."""
    fields = _by_name(value) if attrs.has(type(value)) else {}
    if any(_is_long(each) for each in fields.values()):
        before = b"{"
        for name, each in fields.items():
            yield before + encode(name) + b":"
            yield from encode_pieces(each)
            before = b","
        yield b"}"
    elif _is_long(value):
        for at in range(0, len(value), STEP):
            yield (b"," if at else b"[") + encode(value[at : at + STEP])[1:-1]
        yield b"]"
    else:
        yield encode(value)


def _is_long(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple) and len(value) > STEP


class _BadNumber(ValueError):
    """JSON has no such number, or no float holds it."""


def _no_constant(name: str) -> object:
    raise _BadNumber(f"{name} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise _BadNumber("a number is too large")
    return number


def _unreadable(sentence: str) -> Invalid:
    return Invalid([Mistake("", sentence)])


@cache
def _reader(cls: type) -> tuple[tuple[str, ...], Callable[[object], Any], tuple[str, ...]]:
    """The names of a class's fields, what reads them all at once, and which of them are shares of a CPU."""
    fields = attrs.fields(attrs.resolve_types(cls))
    names = tuple(written(field.name) for field in fields)
    shares = tuple(field.name for field in fields if CpuShare in (field.type, *get_args(field.type)))
    # The class twice, so that it gives a tuple even where there are no fields.
    return names, attrgetter(*(field.name for field in fields), "__class__", "__class__"), shares


def _by_name(value: Any) -> dict[str, Any]:
    """The fields of an attrs value."""
    names, read, shares = _reader(value.__class__)
    written = dict(zip(names, read(value), strict=False))
    for name in shares:
        if isinstance(written[name], int | float):  # a bare number is read as microseconds
            written[name] *= CPU_PERIOD
    return written


def _plain(value: object) -> object:
    """What JSON's writer doesn't know itself; it walks on into the result."""
    kind: type[Any] = type(value)
    if attrs.has(kind):
        return _by_name(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(f"{kind.__name__} can't be written as JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
_ASCII_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)
