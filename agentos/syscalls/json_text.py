"""JSON and base64 encoding of large texts, piece by piece: other tasks run between two pieces."""

import codecs
import math
from binascii import a2b_base64, b2a_base64

import trio

from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest

PIECE_CHARS = 256 << 10  # characters of base64 decoded at a time, so that other threads run in between
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


def decode_base64(text: str, field: str) -> bytes:
    """Decode base64; raises ``BadRequest`` about ``field``. Call it in a thread for large texts."""
    try:
        data = b"".join(
            a2b_base64(text[at : at + PIECE_CHARS], strict_mode=True) for at in range(0, len(text), PIECE_CHARS)
        )
        if len(data) == len(text) // 4 * 3 - text.count("=", -2):  # otherwise there is padding in the middle
            return data
    except ValueError:
        pass
    raise BadRequest(f"{field}: expected base64, with padding and without line breaks")
