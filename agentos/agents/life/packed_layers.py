"""Isolation layers of an ended agent, packed: a thousand such agents are remembered."""

import json
import zlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from agentos_sdk.encoding import codec
from agentos_sdk.values import Layer

# A window of 8 KiB holds an example, and little memory is allocated for it: five times as fast as zlib's defaults.
_WINDOW_BITS, _MEMORY_LEVEL, _LEVEL = -13, 5, 1


class PackedLayers(Struct, frozen=True, gc=False):
    """Layers as compressed JSON. ``example`` is the JSON of another agent's, which these nearly repeat."""

    data: bytes
    example: bytes

    @classmethod
    def pack(cls, layers: Mapping[str, Layer], example: bytes | None = None) -> "PackedLayers":
        """Without an example these are their own, and can be that of others."""
        try:
            text = msgspec.json.encode(layers)
        except UnicodeEncodeError:  # a path that isn't UTF-8
            text = codec.encode(layers)
        example = text if example is None else example
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zdict=example)
        return cls(packer.compress(text) + packer.flush(), example)

    def unpack(self) -> Mapping[str, Layer]:
        text = zlib.decompressobj(_WINDOW_BITS, zdict=self.example).decompress(self.data)
        return {name: Layer(**fields) for name, fields in json.loads(text).items()}
