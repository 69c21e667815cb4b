"""The bytes on the socket: a header of 17 bytes, then a body.

OFFSET  SIZE  FIELD     little-endian, no padding
0       4     magic     0x41474E54 ("AGNT")
4       4     id        version 1: the agent's id; version 2: the request's id
8       1     opcode
9       8     length of the body in bytes
"""

from __future__ import annotations

from struct import Struct

from .errors import BadFrame, CallError, TooLarge

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = Struct("<IIBQ")
MAGIC = 0x41474E54
MAX_PAYLOAD = 16 << 20  # bytes; a kernel's default limit
MAX_ID = 0xFFFFFFFF

Frame = tuple[int, int, bytes]
"""id, opcode, body"""

_pack = HEADER.pack
_unpack_from = HEADER.unpack_from


def frame(number: int, op: int, body: bytes) -> bytes:
    """Encode one frame."""
    return _pack(MAGIC, number, op, len(body)) + body


class Frames:
    """Splits a byte stream into frames; does no I/O.

    ``limits[opcode]`` is the largest body of that opcode, in bytes. It is checked as soon as the header is complete: 17
    bytes from a peer must not make us hold 4 GiB. After a bad frame ``broken`` is the error and all further data is
    ignored, since the start of the next frame is unknown. ``awaited`` is the total size in bytes of the frame being
    received; 0 between frames or before its header.
    """

    __slots__ = ("_buffer", "_limits", "awaited", "broken", "broken_id", "broken_op")

    def __init__(self, limits: Sequence[int]) -> None:
        self._buffer = bytearray()
        self._limits = limits
        self.awaited = 0
        self.broken: CallError | None = None
        self.broken_id = 0
        self.broken_op = 0

    def take(self, data: bytes) -> list[Frame]:
        """The frames that are complete after ``data`` has arrived, in order."""
        found: list[Frame] = []
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < (self.awaited or HEADER.size):
                return found
            data = bytes(buffer)
            buffer.clear()
            self.awaited = 0
        if self.broken is not None:
            return found
        limits, size, at, end = self._limits, HEADER.size, 0, len(data)
        body = size  # where the body of the frame at ``at`` begins
        while body <= end:
            magic, number, op, length = _unpack_from(data, at)
            if magic != MAGIC or length > limits[op]:
                self._refuse(magic, number, op, length)
                return found
            stop = body + length
            if stop > end:
                self.awaited = stop - at
                buffer += memoryview(data)[at:]
                return found
            found.append((number, op, data[body:stop]))
            at, body = stop, stop + size
        if at < end:
            buffer += memoryview(data)[at:]
        return found

    def _refuse(self, magic: int, number: int, op: int, length: int) -> None:
        if magic != MAGIC:
            self.broken = BadFrame(f"expected a frame that begins with 0x{MAGIC:08X}, got 0x{magic:08X}")
        else:
            from .opcodes import op_name  # a client needs no names of opcodes

            self.broken_id, self.broken_op = number, op
            limit = self._limits[op]
            self.broken = TooLarge(f"{op_name(op)} takes a body of at most {limit} bytes, this one has {length}")
