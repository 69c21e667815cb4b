"""Bytes as they stand in a reply, written piece by piece: between two pieces others have their turn."""

import codecs
import math
from binascii import b2a_base64

import trio

from agentos_sdk import codec

PIECE = 48 << 10  # bytes made into JSON at a time, in some 0.2 ms; a multiple of 3, as base64 has it


async def as_json(data: bytes | bytearray) -> bytes:
    """Text as it stands between quotes; what isn't UTF-8 is replaced."""
    return b"".join(await json_pieces(data, "replace"))


async def json_pieces(data: bytes | bytearray, errors: str, whole: bool = True, most: float = math.inf) -> list[bytes]:
    """The same in pieces; ``errors`` is what to do about those, as codecs have it.

    ``strict`` raises ``UnicodeDecodeError``, whose ``start`` is a byte of ``data``. Where that isn't the ``whole``
    text, a character that it ends in the middle of is left out. It stops when there are more than ``most`` bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    pieces = []
    for start in range(0, len(data), PIECE):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data[start : start + PIECE], final=whole and start + PIECE >= len(data))
        except UnicodeDecodeError as error:
            error.start += start - held
            raise
        pieces.append(codec.encode(text)[1:-1])
        most -= len(pieces[-1])
        if most < 0:
            break
        await trio.lowlevel.checkpoint()
    return pieces


async def base64_pieces(data: bytes | bytearray) -> list[bytes]:
    """The same in base64."""
    pieces = []
    for start in range(0, len(data), PIECE):
        pieces.append(b2a_base64(data[start : start + PIECE], newline=False))
        await trio.lowlevel.checkpoint()
    return pieces
