"""JSON and base64 encoding of large texts, piece by piece: other tasks run between two pieces."""

import codecs
import math
from binascii import b2a_base64

import trio

from agentos_sdk import codec

CHUNK_BYTES = 48 << 10  # bytes encoded at a time, in about 0.2 ms; a multiple of 3 for base64


async def encode_json(data: bytes | bytearray) -> bytes:
    """Encode text as the contents of a JSON string; invalid UTF-8 is replaced."""
    return b"".join(await json_pieces(data, "replace"))


async def json_pieces(data: bytes | bytearray, errors: str, whole: bool = True, most: float = math.inf) -> list[bytes]:
    """Encode text as contents of a JSON string, in pieces; ``errors`` is the codec's error mode.

    ``strict`` raises ``UnicodeDecodeError`` with a ``start`` that is an offset in ``data``. Unless ``data`` is the
    ``whole`` text, an incomplete character at its end is omitted. Encoding stops above ``most`` bytes.
    """
    if whole and len(data) <= CHUNK_BYTES:
        return [codec.encode(data.decode(errors=errors))[1:-1]]
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    pieces: list[bytes] = []
    for start in range(0, len(data), CHUNK_BYTES):
        if start:
            await trio.lowlevel.checkpoint()
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data[start : start + CHUNK_BYTES], final=whole and start + CHUNK_BYTES >= len(data))
        except UnicodeDecodeError as error:
            error.start += start - held
            raise
        pieces.append(codec.encode(text)[1:-1])
        most -= len(pieces[-1])
        if most < 0:
            break
    return pieces


async def base64_pieces(data: bytes | bytearray) -> list[bytes]:
    """Encode data as base64, in pieces."""
    pieces: list[bytes] = []
    for start in range(0, len(data), CHUNK_BYTES):
        if start:
            await trio.lowlevel.checkpoint()
        pieces.append(b2a_base64(data[start : start + CHUNK_BYTES], newline=False))
    return pieces
