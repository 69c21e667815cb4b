"""Measures the nesting depth of JSON, finds numbers too large for a float, and strips strings, without parsing it.

Takes any bytes; a parser has to check whether they are JSON. Works in pieces, because each call into C holds the GIL:
when this runs in a thread, the event loop waits for one such call and not for all of them.
"""

from array import array
from functools import cache
from itertools import accumulate
from operator import add

CHUNK_BYTES = 64 << 10  # bytes per call into C, at most 1 ms each; a multiple of 8
MAX_DIGITS = 200  # digits of a number: with a two-digit exponent it stays below 1e308, the largest float
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[{]}"'))
_BITS = bytes.maketrans(b"[{]}", b"1100")  # an opening bracket becomes 1, a closing one 0
_SHAPES = bytes.maketrans(b"123456789E-", b"000000000e+")


def is_nested_deeper(data: bytes, max_depth: int) -> bool:
    """Whether brackets outside of strings are nested deeper than ``max_depth``: at most 10 ms for 1 MiB.

    Eight brackets become one byte (``int`` reads base 2 in linear time), and two tables say what each byte adds.
    """
    # Two adjacent quotes can be dropped anywhere: the text after them stays inside or outside of strings as before.
    brackets = _without_escapes(data).translate(None, _NO_STRUCTURE).replace(b'""', b"")
    if b'"' in brackets:
        brackets = _without_strings(brackets)
    ends, peaks = _tables()
    depth = 0
    for at in range(0, len(brackets), CHUNK_BYTES):
        bits = brackets[at : at + CHUNK_BYTES].translate(_BITS)
        size = -(-len(bits) // 8)
        packed = int(bits.ljust(size * 8, b"0"), 2).to_bytes(size, "big")
        before = list(accumulate(array("b", packed.translate(ends)), initial=depth))
        if max(map(add, before, packed.translate(peaks))) > max_depth:
            return True
        depth = before[-1]
    return False


def count_containers(data: bytes, enough: int) -> int:
    """The arrays and objects of JSON; up to ``enough``, brackets within strings are counted as well."""
    brackets = data.count(b"[") + data.count(b"{")
    if brackets <= enough:
        return brackets
    outside = remove_strings(data)
    return outside.count(b"[") + outside.count(b"{")


def remove_strings(data: bytes) -> bytes:
    """JSON with its strings removed."""
    return _without_strings(_without_escapes(data))


def has_extreme_number(data: bytes) -> bool:
    """Whether JSON has a number that might not fit a float: at most 10 ms for 1 MiB, in short steps.

    That is one with ``MAX_DIGITS`` digits or an exponent of three.
    """
    return _looks_extreme(data) and _looks_extreme(remove_strings(data))


def _looks_extreme(data: bytes) -> bool:
    shapes = data.translate(_SHAPES)
    return b"e000" in shapes or b"e+000" in shapes or b"0" * MAX_DIGITS in shapes


def _without_escapes(data: bytes) -> bytes:
    """JSON with escape sequences removed, so that each string ends at the next quote."""
    return data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data


def _without_strings(data: bytes) -> bytes:
    outside, quotes = [], 0
    for at in range(0, len(data), CHUNK_BYTES):
        parts = data[at : at + CHUNK_BYTES].split(b'"')
        outside.append(b"".join(parts[quotes % 2 :: 2]))
        quotes += len(parts) - 1
    return b"".join(outside)


@cache
def _tables() -> tuple[bytes, bytes]:
    """For each byte of eight brackets: its final depth (signed) and its maximum depth, both relative to its start."""
    sums = [list(accumulate((2 * int(bit) - 1 for bit in f"{byte:08b}"), initial=0)) for byte in range(256)]
    return array("b", (each[-1] for each in sums)).tobytes(), bytes(max(each) for each in sums)
