"""Bodies that are inflated piece by piece: whatever the pieces, and however much they expand."""

import gzip
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.services.http.decompression import PIECE_BYTES, Inflater
from agentos.services.http.request import Unreadable


def inflate(coding: str, data: bytes, size: int) -> Iterator[bytes]:
    inflater = Inflater(coding)
    for at in range(0, len(data), size):
        inflater.feed(data[at : at + size])
        while piece := inflater.take():
            yield piece
    inflater.check_end()


def deflate(data: bytes) -> bytes:
    """Without zlib's header."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.integers(1, 50))
def test_each_coding_is_inflated_in_any_pieces(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)

    assert b"".join(inflate("gzip", b"".join(map(gzip.compress, parts)), size)) == data
    assert b"".join(inflate("deflate", zlib.compress(data), size)) == data
    assert b"".join(inflate("deflate", deflate(data), 1000)) == data


def test_no_piece_is_larger_than_announced() -> None:
    pieces = list(inflate("gzip", gzip.compress(bytes(10 << 20)), 1 << 20))

    assert sum(map(len, pieces)) == 10 << 20
    assert max(map(len, pieces)) == PIECE_BYTES


@pytest.mark.parametrize(
    "data", [b"no gzip at all", gzip.compress(b"cut off", mtime=0)[:-4], gzip.compress(b"x", mtime=0) + b"rest"]
)
def test_what_is_broken_or_incomplete_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        list(inflate("gzip", data, 7))


def test_an_empty_body_is_complete() -> None:
    assert list(inflate("gzip", b"", 1)) == []
