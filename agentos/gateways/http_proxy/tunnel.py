"""Tunnels: copy data in both directions between a client in a jail and a server, until both have ended."""

import os

import trio
from attrs import define, field

IDLE_SECONDS = 1800.0  # without data in either direction
MAX_SECONDS = 24 * 3600.0
BUFFER_BYTES = 256 << 10
DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionError)


def make_buffer() -> memoryview:
    """A buffer for any number of tunnels on one event loop: it holds no data while a task waits."""
    return memoryview(bytearray(BUFFER_BYTES))


@define(eq=False)
class Traffic:
    """One connection to a server: the bytes sent to it and received from it so far, and the scope that ends it."""

    sent: int = 0
    received: int = 0
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    _ends: float = field(factory=lambda: trio.current_time() + MAX_SECONDS)

    def __attrs_post_init__(self) -> None:
        self.keep_open()

    def keep_open(self) -> None:
        """Data has passed: begin the time anew after which an idle connection ends."""
        self.scope.deadline = min(self._ends, trio.current_time() + IDLE_SECONDS)


@define(eq=False)
class Tunnel:
    """Runs within the scope of ``traffic``."""

    client: trio.SocketStream
    server: trio.SocketStream
    buffer: memoryview
    traffic: Traffic

    async def run(self) -> None:
        """Return when both directions have ended or either side is gone.

        The end of one direction is passed on, and the other one continues.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, self.server, self.client, nursery.cancel_scope)
            await self._copy(self.client, self.server, nursery.cancel_scope)

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while size := await self._pass_on(source, target):
                if source is self.client:
                    self.traffic.sent += size
                else:
                    self.traffic.received += size
                self.traffic.keep_open()
            await target.send_eof()
        except DISCONNECTED:
            scope.cancel()

    async def _pass_on(self, source: trio.SocketStream, target: trio.SocketStream) -> int:
        """Pass on what has arrived; returns the number of bytes, 0 at the end.

        Between reading and writing no other task runs: what can't be written at once is copied.
        """
        while True:
            await trio.lowlevel.wait_readable(source.socket)
            try:
                size = os.readv(source.socket.fileno(), [self.buffer])
            except BlockingIOError:
                continue
            break
        if size:
            try:
                written = os.write(target.socket.fileno(), self.buffer[:size])
            except BlockingIOError:
                written = 0
            if written < size:
                await target.send_all(bytes(self.buffer[written:size]))
        return size
