"""Bytes from a client of the proxy: heads of requests, and their bodies up to exactly their end."""

import re

import trio
from attrs import define, field

from .request_head import BARE_LINE_END, MAX_HEAD_BYTES, BadHead

HEAD_SECONDS = 10.0  # from the first byte of a head to its last
READ_SIZE = 64 << 10
CHUNK_HEAD = re.compile(rb"[0-9a-fA-F]{1,15}")  # no extensions: servers differ in how they read them


@define(eq=False)
class Incoming:
    """The receiving side of a client's connection. ``buffer`` holds what was received and not read yet."""

    stream: trio.SocketStream
    buffer: bytearray = field(factory=bytearray)

    async def read_head(self, idle_seconds: float) -> bytes | None:
        """The next head with its empty line; None if the client disconnects, or is silent for that time, before it.

        Raises :class:`BadHead`, and ``TooSlowError`` if a head takes too long once it has begun.
        """
        with trio.move_on_after(idle_seconds):
            if not self.buffer:
                await self._receive()
        if not self.buffer:
            return None
        with trio.fail_after(HEAD_SECONDS):
            return await self._read_to_empty_line()

    async def _read_to_empty_line(self) -> bytes | None:
        searched = 0
        while (end := self.buffer.find(b"\r\n\r\n", max(searched - 3, 0))) < 0:
            if BARE_LINE_END.search(self.buffer, max(searched - 1, 0), len(self.buffer) - 1):
                raise BadHead("a line doesn't end in CR LF")
            if len(self.buffer) > MAX_HEAD_BYTES:
                break
            searched = len(self.buffer)
            if not await self._receive():
                return None
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise BadHead(f"a head of more than {MAX_HEAD_BYTES >> 10} KiB")
        return self._take(end + 4)

    async def _receive(self) -> bool:
        data = await self.stream.receive_some(READ_SIZE)
        self.buffer += data
        return bool(data)

    async def _fill(self, size: int) -> None:
        while len(self.buffer) < size:
            if not await self._receive():
                raise BadHead("the body ends too early")

    def _take(self, size: int) -> bytes:
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    async def take_some(self, most: int) -> bytes:
        """Between 1 and ``most`` bytes of a body."""
        await self._fill(1)
        return self._take(min(most, len(self.buffer)))

    async def take_line(self, most: int) -> bytes:
        """The line without its CR LF; :class:`BadHead` if it has more than ``most`` bytes."""
        while (end := self.buffer.find(b"\r\n", 0, most + 2)) < 0:
            if len(self.buffer) >= most + 2:
                raise BadHead("a chunk begins with its size in hexadecimal digits and CR LF, without extensions")
            await self._fill(len(self.buffer) + 1)
        return self._take(end + 2)[:-2]


@define(eq=False)
class Body:
    """The body of one request: of ``length`` bytes, or in chunks if that is None. ``at_end``: all of it has arrived."""

    incoming: Incoming
    length: int | None
    _left: int = field(default=0)  # of the body, or of the present chunk
    at_end: bool = False
    _again: bytes = b""  # of what was received as a whole

    def __attrs_post_init__(self) -> None:
        self._left = self.length or 0
        self.at_end = self.length == 0

    async def receive(self) -> bytes:
        """More of the body; empty at its end. Raises :class:`BadHead` if its chunks are malformed or it ends early."""
        if self._again:
            data, self._again = self._again, b""
            return data
        if self.at_end:
            return b""
        if self.length is None and self._left == 0 and not await self._begin_chunk():
            return b""
        data = await self.incoming.take_some(min(self._left, READ_SIZE))
        self._left -= len(data)
        if self._left == 0:
            if self.length is not None:
                self.at_end = True
            elif await self.incoming.take_line(0):
                raise BadHead("a chunk doesn't end in CR LF")
        return data

    async def receive_whole(self) -> bytes:
        """The whole body, which :meth:`receive` returns once more. Raises as that does."""
        whole = bytearray()
        while data := await self.receive():
            whole += data
        self._again = bytes(whole)
        return self._again

    async def _begin_chunk(self) -> bool:
        head = await self.incoming.take_line(15)
        if not CHUNK_HEAD.fullmatch(head):
            raise BadHead("a chunk begins with its size in hexadecimal digits and CR LF, without extensions")
        self._left = int(head, 16)
        if self._left == 0:
            if await self.incoming.take_line(0):
                raise BadHead("trailers aren't accepted")
            self.at_end = True
        return self._left > 0
