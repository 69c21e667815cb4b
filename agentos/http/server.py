"""HTTP/1.1 server on a listening socket of the kernel: limits connections and isolates their errors."""

import logging
import math
import socket
from collections import Counter
from collections.abc import Hashable

import trio
from attrs import define, evolve, field
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

from agentos.kernel.caller import MAX_CONNECTIONS, Allowance, Caller
from agentos.kernel.wire.listener import ConnectionLimit

from .accept import accept
from .connection import DISCONNECTED, HTTPConnection
from .users import FindUser

log = logging.getLogger(__name__)

MIN_AGE = 1.0  # seconds, of a connection that gives way to one of the same user: a flood of them costs accepting them
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

    With ``find_user`` all users of the host can connect, and those at the port have equal shares of the places. A
    connection of one with more gives way to that of another, whatever it is busy with; a client of one that has its
    share is refused if none of its own waits for a request.

    A client that doesn't take what is sent for ``send_timeout`` seconds is disconnected.
    """

    listener: socket.socket
    connection_limit: ConnectionLimit
    caller: Caller
    app: ASGIFramework
    send_timeout: float = math.inf
    find_user: FindUser | None = None
    _slots: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_CONNECTIONS))
    _idle: dict[HTTPConnection, None] = field(factory=dict)  # the one that waits longest for a request is the first
    _users: dict[HTTPConnection, Hashable] = field(factory=dict)  # the oldest connection is the first

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        async with trio.open_nursery() as nursery:
            while True:
                if not self._slots.value and self.find_user is None:
                    await trio.lowlevel.wait_readable(self.listener)
                    if not self._slots.value and self._idle:
                        next(iter(self._idle)).close()
                    await self._slots.acquire()
                    self._slots.release()
                stream = None
                while stream is None:
                    stream = await accept(listener)
                user = self.find_user(stream.socket) if self.find_user is not None else None
                if not self._slots.value and not self._make_room(user):
                    stream.socket.close()
                    continue
                await self._slots.acquire()
                connection = HTTPConnection(stream, self._answer, self._idle, self.send_timeout)
                self._users[connection] = user
                nursery.start_soon(self._receive, stream, connection)

    def _make_room(self, user: Hashable) -> bool:
        """End a connection, for one of this user that has come; False if none gives way."""
        held = Counter(self._users.values())
        most, count = held.most_common(1)[0]
        over = count > MAX_CONNECTIONS // len({*held, user}) and most != user
        theirs = [one for one, by in self._users.items() if by == (most if over else user)]
        before = math.inf if over else trio.current_time() - MIN_AGE
        found = next((one for one in theirs if one.gives_way and one.began <= before), None)
        if found is None and over:
            found = next((one for one in theirs if not one.is_kept), None)
        if found is not None:
            del self._users[found]
            found.end()
        return found is not None

    async def _receive(self, stream: trio.SocketStream, connection: HTTPConnection) -> None:
        try:
            if self.connection_limit.describe_full(self.caller, proven=False) is None:
                with self.connection_limit.count(self.caller):
                    await connection.run()
            else:
                await stream.send_all(SERVICE_UNAVAILABLE)
        except* DISCONNECTED:
            pass
        except* Exception:  # most probably hypercorn failed on malformed input
            log.debug("an HTTP connection of %s ended by an error", self.caller.name, exc_info=True)
        finally:
            self._users.pop(connection, None)
            self._idle.pop(connection, None)
            self._slots.release()
            stream.socket.close()

    async def _answer(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the app; if all places are taken, close the connection after the response."""

        async def send_event(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start" and not self._slots.value:
                event["headers"] = [*event["headers"], (b"connection", b"close")]
            await send(event)

        await self.app(scope, receive, send_event)
