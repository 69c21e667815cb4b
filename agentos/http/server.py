"""HTTP/1.1 server on a listening socket of the kernel: counts its connections with those of the kernel's socket."""

import math
import socket

import trio
from attrs import define, evolve, field
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

from agentos.kernel.caller import MAX_CONNECTIONS, Allowance, Caller
from agentos.kernel.wire.listener import ConnectionLimit

from .connection import HTTPConnection
from .places import Places
from .users import FindUser

SERVICE_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


def with_own_allowance(caller: Caller) -> Caller:
    """The caller with a separate allowance for this port, in addition to that for the kernel's socket."""
    return evolve(caller, allowance=Allowance())


@define(eq=False)
class HTTPListener:
    """Serves ``caller``. ``send_timeout`` and ``find_user`` are those of :class:`.places.Places`."""

    listener: socket.socket
    connection_limit: ConnectionLimit
    caller: Caller
    app: ASGIFramework
    send_timeout: float = math.inf
    find_user: FindUser | None = None
    _places: Places = field(init=False)

    def __attrs_post_init__(self) -> None:
        how = self.send_timeout, self.find_user, self._serve_connection
        self._places = Places(self.listener, self._answer, MAX_CONNECTIONS, *how)

    async def serve(self) -> None:
        """Serve until cancelled."""
        await self._places.serve()

    async def _serve_connection(self, connection: HTTPConnection, stream: trio.SocketStream) -> None:
        if self.connection_limit.describe_full(self.caller, proven=False) is None:
            with self.connection_limit.count(self.caller):
                await connection.run()
        else:
            await stream.send_all(SERVICE_UNAVAILABLE)

    async def _answer(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the app; if all places are taken, close the connection after the response."""

        async def send_event(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start" and self._places.are_taken:
                event["headers"] = [*event["headers"], (b"connection", b"close")]
            await send(event)

        await self.app(scope, receive, send_event)
