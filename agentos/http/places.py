"""Accepts the connections of a listening socket, as many at a time as it has places."""

import logging
import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable

import trio
from attrs import define, field
from hypercorn.typing import ASGIFramework

from .accept import accept
from .connection import DISCONNECTED, HTTPConnection
from .users import FindUser

log = logging.getLogger(__name__)

MIN_AGE = 1.0  # seconds without a request, after which a connection gives way to one of the same user: it may be coming


async def run_connection(connection: HTTPConnection, stream: trio.SocketStream) -> None:
    await connection.run()


@define(eq=False)
class Places:
    """With all ``most`` places taken, a new client gets that of the connection that has sent no request for the longest
    time, :data:`MIN_AGE` at least; if there is none, it waits.

    With ``find_user`` all users of the host can connect, and those at the port have equal shares of the places. A
    connection of one with more gives way to that of another, whatever it is busy with; a client of one that has its
    share is refused if none of its own waits for a request.

    A client that doesn't take what is sent for ``send_timeout`` seconds is disconnected.
    """

    listener: socket.socket
    app: ASGIFramework
    most: int
    send_timeout: float = math.inf
    find_user: FindUser | None = None
    serve_connection: Callable[[HTTPConnection, trio.SocketStream], Awaitable[None]] = run_connection
    _slots: trio.Semaphore = field(init=False)
    _users: dict[HTTPConnection, Hashable] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._slots = trio.Semaphore(self.most)

    @property
    def are_taken(self) -> bool:
        return not self._slots.value

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        async with trio.open_nursery() as nursery:
            while True:
                if self.are_taken and self.find_user is None:
                    await self._wait_for_place()
                stream = None
                while stream is None:
                    stream = await accept(listener)
                user = self.find_user(stream.socket) if self.find_user is not None else None
                if self.are_taken and not self._make_room(user):
                    stream.socket.close()
                    continue
                await self._slots.acquire()
                connection = HTTPConnection(stream, self.app, self.send_timeout)
                self._users[connection] = user
                nursery.start_soon(self._receive, stream, connection)

    async def _wait_for_place(self) -> None:
        await trio.lowlevel.wait_readable(self.listener)
        while self.are_taken:
            with trio.move_on_after(math.inf if self._make_room(None) else MIN_AGE / 4):
                await self._slots.acquire()
                self._slots.release()

    def _make_room(self, user: Hashable) -> bool:
        """End a connection, for one of this user that has come; False if none gives way."""
        held = Counter(self._users.values())
        greediest, count = held.most_common(1)[0]
        over = count > self.most // len({*held, user}) and greediest != user
        theirs = [one for one, by in self._users.items() if by == (greediest if over else user)]
        before = math.inf if over else trio.current_time() - MIN_AGE
        theirs.sort(key=lambda one: one.waits_since)
        found = next((one for one in theirs if one.waits_since <= before and one.gives_way), None)
        if found is None and over:
            found = next((one for one in theirs if not one.is_kept), None)
        if found is not None:
            del self._users[found]
            found.scope.cancel()
        return found is not None

    async def _receive(self, stream: trio.SocketStream, connection: HTTPConnection) -> None:
        try:
            with connection.scope:
                await self.serve_connection(connection, stream)
        except* DISCONNECTED:
            pass
        except* Exception:  # most probably hypercorn failed on malformed input
            log.debug("an HTTP connection ended by an error", exc_info=True)
        finally:
            self._users.pop(connection, None)
            self._slots.release()
            stream.socket.close()
