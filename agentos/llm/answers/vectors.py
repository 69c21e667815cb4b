"""Embeddings as bytes: 32-bit floats, the lowest byte first, as OpenAI's protocol has them in base64."""

import sys
from array import array


def pack_vector(numbers: "array[float]") -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def unpack_vector(data: bytes) -> "array[float]":
    """Undo :func:`pack_vector`; raises ``ValueError``."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
