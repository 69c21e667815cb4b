"""Calls in flight: the context of one request with a handler that may wait."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from agentos_sdk.errors import BadRequest

if TYPE_CHECKING:
    from .caller import Allowance, Caller


MAX_UNREAD_BYTES = 1 << 20  # of the CHUNK frames sent to one call, FRAME_COST_BYTES added for each
FRAME_COST_BYTES = 256  # each frame takes time and memory, however short


class Gone(Exception):
    """The connection can't be written to any more because the peer has closed it. This is not an error."""


@define(eq=False)
class Input:
    """CHUNK frames that a client has sent to a call in flight and the call hasn't taken yet.

    Their bytes count as the caller's requests. While they are more than :data:`MAX_UNREAD_BYTES` the connection is not
    read.
    """

    _allowance: "Allowance"
    _bodies: deque[bytes] = field(factory=deque)
    _size: int = 0  # of ``_bodies``, as MAX_UNREAD_BYTES counts
    _closed: bool = False
    _arrived: trio.Event = field(factory=trio.Event)
    _taken: trio.Event = field(factory=trio.Event)

    @property
    def has_room(self) -> bool:
        return self._size <= MAX_UNREAD_BYTES

    async def wait_for_room(self) -> None:
        while not self.has_room:
            await self._taken.wait()

    def put(self, body: bytes) -> None:
        if self._closed:
            return
        size = len(body) + FRAME_COST_BYTES
        self._bodies.append(body)
        self._size += size
        self._allowance.take(size)
        self._arrived.set()

    async def take(self) -> bytes:
        """The body of the next frame, once there is one. Other tasks run between two frames."""
        await trio.lowlevel.checkpoint()
        while not self._bodies:
            self._arrived = trio.Event()
            await self._arrived.wait()
        body = self._bodies.popleft()
        self._drop(len(body) + FRAME_COST_BYTES)
        return body

    def close(self) -> None:
        """Drop what is unread, and all that comes: the call takes no more."""
        self._closed = True
        self._bodies.clear()
        self._drop(self._size)

    def _drop(self, size: int) -> None:
        self._size -= size
        self._allowance.give_back(size)
        self._taken.set()
        self._taken = trio.Event()


async def send_nothing(chunk: bytes) -> None:
    raise AssertionError("a call whose reply isn't streamed sends no chunks")


@define(eq=False)
class Call:
    """Context of a waiting call, passed to the function that does it.

    ``send`` sends a CHUNK frame and returns when the socket has taken it: a slow reader slows only its own stream.
    ``undelivered``, if that function sets it, is called when the reply could not be written to the socket. It puts back
    what the reply removed, such as messages. ``remark`` is added to the call's description in the audit log, and
    ``outcome`` stands there instead of the code of the call's error.
    """

    caller: "Caller"
    streams: bool  # the sender takes chunks; on a connection: it uses protocol version 2
    send: Callable[[bytes], Awaitable[None]] = send_nothing
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    undelivered: Callable[[], None] | None = None
    remark: str = ""
    outcome: str = ""
    approval_timeout: float | None = None  # seconds that it waits for a person; None: as configured
    input: Input | None = None  # frames that the client sends to it, if it takes any

    def cancel(self) -> None:
        self.scope.cancel()

    def refuse_input(self) -> None:
        """Take no CHUNK frames, and drop those that have arrived."""
        if self.input is not None:
            self.input.close()
            self.input = None

    def require_stream(self, key: str) -> None:
        """Raise ``BadRequest`` if the reply can't be streamed on this connection."""
        if not self.streams:
            raise BadRequest(f"{key}: needs protocol version 2 (say HELLO with protocol 2 first)")

    def tee(self, take: Callable[[bytes], object]) -> None:
        """Have ``take`` see each chunk before it is sent."""
        send = self.send

        async def send_both(chunk: bytes) -> None:
            take(chunk)
            await send(chunk)

        self.send = send_both
