"""Calls in flight: the context of one request with a handler that may wait."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from agentos_sdk.errors import BadRequest

if TYPE_CHECKING:
    from .caller import Caller


class Gone(Exception):
    """The connection can't be written to any more because the peer has closed it. This is not an error."""


@define(eq=False)
class Call:
    """Context of a waiting call, passed to the function that does it.

    ``undelivered``, if that function sets it, is called when the reply could not be written to the socket. It puts back
    what the reply removed, such as messages. ``remark`` is added to the call's description in the audit log, and
    ``outcome`` stands there instead of the code of the call's error.
    """

    caller: "Caller"
    streams: bool  # the sender takes chunks; on a connection: it uses protocol version 2
    _send: Callable[[bytes], Awaitable[None]]
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    undelivered: Callable[[], None] | None = None
    remark: str = ""
    outcome: str = ""

    def require_stream(self, key: str) -> None:
        """Raise ``BadRequest`` if the reply can't be streamed on this connection."""
        if not self.streams:
            raise BadRequest(f"{key}: needs protocol version 2 (say HELLO with protocol 2 first)")

    async def send(self, chunk: bytes) -> None:
        """Send a CHUNK frame. Returns when the socket has taken it: a slow reader slows only its own stream."""
        await self._send(chunk)
