"""HTTP/1.1 server on a listening socket of the kernel: limits connections and isolates their errors."""

import logging
import math
import socket

import trio
from attrs import define, evolve, field
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

from agentos.kernel.caller import MAX_CONNECTIONS, Allowance, Caller
from agentos.kernel.wire.listener import ConnectionLimit

from .accept import accept
from .connection import DISCONNECTED, HTTPConnection

log = logging.getLogger(__name__)

SERVICE_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


def with_own_allowance(caller: Caller) -> Caller:
    """The caller with a separate allowance for this port, in addition to that for the kernel's socket."""
    return evolve(caller, allowance=Allowance())


@define(eq=False)
class HTTPListener:
    """Serves ``caller``. With all places taken, a new client gets that of the connection that has sent no request for
    the longest time; if all are busy with one, it waits.

    A client that doesn't take what is sent for ``send_timeout`` seconds is disconnected.
    """

    listener: socket.socket
    connection_limit: ConnectionLimit
    caller: Caller
    app: ASGIFramework
    send_timeout: float = math.inf
    _slots: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_CONNECTIONS))
    _idle: dict[HTTPConnection, None] = field(factory=dict)  # the one that waits longest for a request is the first

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        async with trio.open_nursery() as nursery:
            while True:
                if not self._slots.value:
                    await trio.lowlevel.wait_readable(self.listener)
                    if not self._slots.value and self._idle:
                        next(iter(self._idle)).close()
                await self._slots.acquire()
                stream = None
                while stream is None:
                    stream = await accept(listener)
                nursery.start_soon(self._receive, stream)

    async def _receive(self, stream: trio.SocketStream) -> None:
        try:
            if self.connection_limit.describe_full(self.caller, proven=False) is None:
                with self.connection_limit.count(self.caller):
                    await self._run(HTTPConnection(stream, self._answer, self._idle, self.send_timeout))
            else:
                await stream.send_all(SERVICE_UNAVAILABLE)
        except* DISCONNECTED:
            pass
        except* Exception:  # most probably hypercorn failed on malformed input
            log.debug("an HTTP connection of %s ended by an error", self.caller.name, exc_info=True)
        finally:
            self._slots.release()
            stream.socket.close()

    async def _run(self, connection: HTTPConnection) -> None:
        try:
            await connection.run()
        finally:
            self._idle.pop(connection, None)

    async def _answer(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the app; if all places are taken, close the connection after the response."""

        async def send_event(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start" and not self._slots.value:
                event["headers"] = [*event["headers"], (b"connection", b"close")]
            await send(event)

        await self.app(scope, receive, send_event)
