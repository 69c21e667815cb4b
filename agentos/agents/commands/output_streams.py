"""Output streams of a command: kept up to a limit, or passed on as the data arrives."""

import codecs
from collections.abc import Awaitable, Callable
from typing import Literal

from attrs import define, field

KEPT = 1 << 20  # bytes of each stream
PIECE = 64 << 10  # characters passed on at a time
RATE = 16 << 20  # bytes per second read of a stream that is the only one; a faster program waits, not the kernel

Name = Literal["stdout", "stderr"]
Send = Callable[[Name, str], Awaitable[None]]


@define(eq=False)
class Stream:
    """Keeps the beginning of the stream and drops the rest."""

    kept: bytearray = field(factory=bytearray)
    truncated: bool = False

    def take(self, data: bytes) -> float:
        room = KEPT - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room
        return len(data) / RATE

    async def taken(self) -> None:
        """Return when more may be read."""

    async def end(self) -> None:
        """Return when all data has been delivered."""


@define(eq=False)
class Live(Stream):
    """Passes text on as it arrives: keeps nothing, drops nothing and doesn't read ahead."""

    name: Name = field(kw_only=True)
    send: Send = field(kw_only=True)
    _text: str = ""
    _decoder: codecs.IncrementalDecoder = field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, data: bytes) -> float:
        self._text += self._decoder.decode(data)
        return len(data) / RATE

    async def taken(self) -> None:
        while text := self._text[:PIECE]:
            self._text = self._text[PIECE:]
            await self.send(self.name, text)

    async def end(self) -> None:
        self._text += self._decoder.decode(b"", final=True)
        await self.taken()
