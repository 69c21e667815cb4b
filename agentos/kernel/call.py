"""Calls in flight: the context of one request with a handler that may wait."""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from agentos_sdk.errors import BadRequest

from .caller import about_of
from .ports import Decision, Right

if TYPE_CHECKING:
    from .caller import Caller


class Gone(Exception):
    """The connection can't be written to any more because the peer has closed it. This is not an error."""


@define(eq=False)
class Call:
    """Context of a waiting call, passed to its handler together with the request.

    ``undelivered``, if the handler sets it, is called when the reply could not be written to the socket. It puts back
    what the reply removed, such as messages.
    """

    caller: "Caller"
    streams: bool  # the connection uses protocol version 2 and can carry CHUNK frames
    _send: Callable[[bytes], Awaitable[None]]
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    undelivered: Callable[[], None] | None = None
    announces: bool = False  # the audit log records the intent before anything is done
    judged: "Judged | None" = None

    async def require(self, *rights: Right, about: str | None = None) -> None:
        """Return if the caller may do this; otherwise raise ``PermissionDenied`` or ``ApprovalRequired``.

        A coroutine because a rule may have to ask a person, and because for calls that change something the intent is
        on disk when this returns. Called once, where the object is known and before anything is done. ``about`` is the
        object's description for the audit log if the rights don't contain it.
        """
        decisions = [self.caller.check(right, about) for right in rights]
        judged = Judged(rights[0].action.upper(), about_of(rights[0], about), decisions[0])
        if self.announces:
            entry = self.caller.entry(judged.call, judged.about, judged.decision, "intent")
            judged.intent = await self.caller.audit.intend(entry)
            self.judged = judged
            for right in rights:  # the audit write may have taken a while, and the right may have been revoked
                self.caller.check(right, about)
        self.judged = judged

    def require_stream(self, key: str) -> None:
        """Raise ``BadRequest`` if the reply can't be streamed on this connection."""
        if not self.streams:
            raise BadRequest(f"{key}: needs protocol version 2 (say HELLO with protocol 2 first)")

    async def send(self, chunk: bytes) -> None:
        """Send a CHUNK frame. Returns when the socket has taken it: a slow reader slows only its own stream."""
        await self._send(chunk)


@define
class Judged:
    """The decision about a call that was allowed; ``intent`` is the number of its intent entry in the audit log."""

    call: str
    about: str
    decision: Decision
    intent: int | None = None
    began: float = field(factory=perf_counter)
