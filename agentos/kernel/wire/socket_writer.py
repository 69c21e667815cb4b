"""Replies to a peer: frames in order, each sent as far as the socket takes it at once; the rest is queued."""

import socket
from collections import deque

import trio
from trio.lowlevel import wait_writable

from agentos.kernel.call import Gone
from agentos_sdk.frames import HEADER, MAGIC

LARGE_REPLY_BYTES = 64 << 10  # bytes; a larger reply is sent directly instead of being copied again

_pack = HEADER.pack


class SocketWriter:
    """Writes frames to one socket. Raises ``Gone`` if the peer has closed it.

    The queue has no limit of its own: a connection reads no more requests while it isn't empty.
    """

    __slots__ = ("_lock", "_socket", "queued", "sent", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.unsent: deque[memoryview] = deque()  # what the socket hasn't taken yet
        self.queued = self.sent = 0  # bytes in total
        self._lock: trio.Lock | None = None

    def share(self) -> None:
        """From now on several tasks may call :meth:`flush` at the same time."""
        self._lock = trio.Lock()

    def reply(self, number: int, op: int, reply: bytes) -> int:
        """Push a frame; returns the total of bytes sent at which the socket has taken all of it."""
        out = [_pack(MAGIC, number, op, len(reply))]
        if len(reply) > LARGE_REPLY_BYTES:
            self.push(out)
        out.append(reply)
        self.push(out)
        return self.queued

    def push(self, parts: list[bytes]) -> None:
        """Send what the socket takes at once and queue the rest; empties ``parts``."""
        if not parts:
            return
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.queued += len(data)
        sent = 0
        if not self.unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                raise Gone from None
            self.sent += sent
        if sent < len(data):
            self.unsent.append(memoryview(data)[sent:])

    async def flush(self) -> None:
        """Return when the socket has taken everything that was queued before this call."""
        if self._lock is None:
            await self._drain()
        else:
            async with self._lock:  # only one task at a time may wait for a socket
                await self._drain()

    async def _drain(self) -> None:
        unsent = self.unsent
        while unsent:
            await wait_writable(self._socket)
            try:
                sent = self._socket.send(unsent[0])
            except BlockingIOError:
                continue
            except OSError:
                raise Gone from None
            self.sent += sent
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]
