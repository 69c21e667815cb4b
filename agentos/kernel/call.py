"""One request under way that may have to wait."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from agentos_sdk.errors import BadRequest

from .ports import Right

if TYPE_CHECKING:
    from .caller import Caller


class Gone(Exception):
    """The peer can't be written to any more. Not an error of anybody's: peers go."""


@define(eq=False)
class Call:
    """What the handler of a waiting call gets besides its request.

    ``undelivered``, if the handler sets it, is called when the reply could not be handed to the socket, so that what
    the reply took away (messages) can be put back.
    """

    caller: "Caller"
    streams: bool  # this connection can carry CHUNK frames: it speaks version 2
    _send: Callable[[bytes], Awaitable[None]]
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    undelivered: Callable[[], None] | None = None

    async def require(self, right: Right) -> None:
        """Return when the caller may do this; raise ``PermissionDenied`` when not.

        A coroutine because a rule may have to ask a person; called where the object is known, before anything is done.
        """
        self.caller.check(right)

    def require_stream(self, key: str) -> None:
        """Raise ``BadRequest`` where the reply can't be streamed."""
        if not self.streams:
            raise BadRequest(f"{key}: needs protocol version 2 (say HELLO with protocol 2 first)")

    async def send(self, chunk: bytes) -> None:
        """Send a CHUNK frame; returns when the socket has taken it, so a slow reader slows its own stream."""
        await self._send(chunk)
