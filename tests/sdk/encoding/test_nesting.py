"""How deep JSON is nested is found without parsing it: as its values say, or as brackets do that are no JSON."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.encoding.nesting import CHUNK_BYTES, is_nested_deeper, remove_strings

WORDS = st.text('[]{}"\\a\n\u00e9', max_size=6)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)
TOKENS = [b"[", b"]", b"{", b"}", b'"', b'""', b",", b"1", b"a"]
# What is put before, so that a piece ends anywhere in the rest: in a string, between two quotes, at its deepest.
FILLERS = st.sampled_from(
    [b"", b"[]" * (CHUNK_BYTES // 2 - 5), b'"",' * (CHUNK_BYTES // 3 - 3), b'"["' * (CHUNK_BYTES // 3 - 3)]
)


def depth_of(data: object) -> int:
    """By recursion over the values."""
    if not isinstance(data, dict | list):
        return 0
    return 1 + max(map(depth_of, data.values() if isinstance(data, dict) else data), default=0)


def walk(data: bytes) -> tuple[int, bytes]:
    """The greatest depth, and what is outside of strings, byte by byte. Knows no backslashes."""
    depth, deepest, quoted, outside = 0, 0, False, bytearray()
    for byte in data:
        if byte == ord('"'):
            quoted = not quoted
        elif not quoted:
            outside.append(byte)
            depth += (byte in b"[{") - (byte in b"]}")
            deepest = max(deepest, depth)
    return deepest, bytes(outside)


@given(ANYTHING, st.integers(0, 70), st.booleans())
def test_json_is_as_deep_as_its_values(inner: object, wraps: int, ascii_only: bool) -> None:
    for _ in range(wraps):
        inner = [inner, "]"]
    data, depth = json.dumps(inner, ensure_ascii=ascii_only).encode(), depth_of(inner)

    assert not is_nested_deeper(data, depth)
    assert depth == 0 or is_nested_deeper(data, depth - 1)


@given(ANYTHING, st.lists(st.tuples(st.integers(0), st.sampled_from([*TOKENS, b"\\", b"\xff", b""])), max_size=4))
def test_what_is_still_json_when_it_was_damaged_is_too(data: object, damages: list[tuple[int, bytes]]) -> None:
    body = json.dumps(data).encode()
    for at, token in damages:
        at %= len(body) + 1
        body = body[:at] + token + body[at + 1 :]
        is_nested_deeper(body, 64)  # never raises
    with suppress(ValueError):
        depth = depth_of(json.loads(body))
        assert not is_nested_deeper(body, depth)
        assert depth == 0 or is_nested_deeper(body, depth - 1)


@given(FILLERS, st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join))
def test_brackets_that_are_no_json_are_counted_byte_by_byte(filler: bytes, rest: bytes) -> None:
    data = filler + rest
    depth, outside = walk(data)

    assert not is_nested_deeper(data, depth)
    assert depth == 0 or is_nested_deeper(data, depth - 1)
    assert remove_strings(data) == outside


def test_a_great_depth_is_found_beyond_the_first_piece() -> None:
    data = b"[" + b"[]," * CHUNK_BYTES + b"[" * 63 + b"]" * 63 + b"]"

    assert is_nested_deeper(data, 63)
    assert not is_nested_deeper(data, 64)
