"""Tunnels: copy data in both directions between a client in a jail and a server, until both have ended."""

import os
from collections.abc import Callable

import trio
from attrs import define, field

from agentos_sdk.errors import CallError

IDLE_SECONDS = 1800.0  # without data in either direction
MAX_SECONDS = 24 * 3600.0
BUFFER_BYTES = 256 << 10
CHARGED_BYTES = 1 << 20  # are charged at a time, and the rest at the end
DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)  # such as ETIMEDOUT, EHOSTUNREACH


def make_buffer() -> memoryview:
    """A buffer for any number of tunnels on one event loop: it holds no data while a task waits."""
    return memoryview(bytearray(BUFFER_BYTES))


@define(eq=False)
class Traffic:
    """One connection to a server: the bytes sent and received so far, and the scope in which it is used.

    ``charge_bytes`` counts them towards quotas. ``refusal`` is why the connection was ended.
    """

    charge_bytes: Callable[[int], None] = lambda size: None
    sent: int = 0
    received: int = 0
    refusal: CallError | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    idle_seconds: float = field(factory=lambda: IDLE_SECONDS)
    _charged: int = 0
    _ends: float = field(factory=lambda: trio.current_time() + MAX_SECONDS)

    def __attrs_post_init__(self) -> None:
        self.count()

    def count(self, sent: int = 0, received: int = 0) -> None:
        """Count data that has passed; the time after which an idle connection ends begins anew."""
        self.sent += sent
        self.received += received
        self.scope.deadline = min(self._ends, trio.current_time() + self.idle_seconds)
        if self.sent + self.received - self._charged >= CHARGED_BYTES:
            self.charge()

    def charge(self) -> None:
        """Charge what wasn't yet; if a quota is exceeded the connection ends."""
        size = self.sent + self.received - self._charged
        self._charged += size
        try:
            if size:
                self.charge_bytes(size)
        except CallError as error:
            self.end(error)

    def end(self, refusal: CallError) -> None:
        self.refusal = refusal
        self.scope.cancel()


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
                    self.traffic.count(sent=size)
                else:
                    self.traffic.count(received=size)
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
