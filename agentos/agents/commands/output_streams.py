"""Output streams of a command: kept up to a limit, or passed on as the data arrives."""

import codecs
from collections.abc import Awaitable, Callable
from typing import Literal

from attrs import define, field

MAX_KEPT_BYTES = 1 << 20  # bytes of each stream
MAX_TAIL_BYTES = 2 << 10  # bytes of a stream of which only the end is kept
PIECE_CHARS = 64 << 10  # passed on at a time
BYTES_PER_SECOND = 16 << 20  # read of a stream that is the only one; a faster program waits, not the kernel

Name = Literal["stdout", "stderr"]
Send = Callable[[Name, str], Awaitable[None]]


@define(eq=False)
class Stream:
    """Keeps the beginning of the stream and drops the rest."""

    kept: bytearray = field(factory=bytearray)
    truncated: bool = False

    def take(self, data: bytes) -> float:
        room = MAX_KEPT_BYTES - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room
        return len(data) / BYTES_PER_SECOND

    async def wait_delivered(self) -> None:
        """Return when more may be read."""

    async def end(self) -> None:
        """Return when all data has been delivered."""


@define(eq=False)
class Tail(Stream):
    """Keeps the end of the stream."""

    def take(self, data: bytes) -> float:
        self.kept = (self.kept + data)[-MAX_TAIL_BYTES:]
        return len(data) / BYTES_PER_SECOND


@define(eq=False)
class Live(Stream):
    """Passes text on as it arrives: keeps nothing, drops nothing and doesn't read ahead."""

    name: Name = field(kw_only=True)
    send: Send = field(kw_only=True)
    _text: str = ""
    _decoder: codecs.IncrementalDecoder = field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, data: bytes) -> float:
        self._text += self._decoder.decode(data)
        return len(data) / BYTES_PER_SECOND

    async def wait_delivered(self) -> None:
        while text := self._text[:PIECE_CHARS]:
            self._text = self._text[PIECE_CHARS:]
            await self.send(self.name, text)

    async def end(self) -> None:
        self._text += self._decoder.decode(b"", final=True)
        await self.wait_delivered()
