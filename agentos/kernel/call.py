"""One request under way that may have to wait."""

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
    announces: bool = False  # what is decided is written down before anything is done
    judged: "Judged | None" = None

    async def require(self, *rights: Right, about: str | None = None) -> None:
        """Return when the caller may do this; raise ``PermissionDenied`` or ``ApprovalRequired`` when not.

        A coroutine because a rule may have to ask a person, and because the intent to do what changes something is on
        disk when this returns. Called where the object is known, once, before anything is done. ``about`` is what the
        audit log says that it was about, where the rights don't say it themselves.
        """
        decisions = [self.caller.check(right, about) for right in rights]
        judged = Judged(rights[0].action.upper(), about_of(rights[0], about), decisions[0])
        if self.announces:
            entry = self.caller.entry(judged.call, judged.about, judged.decision, "intent")
            judged.intent = await self.caller.audit.intend(entry)
            self.judged = judged
            for right in rights:  # that may have taken a while, in which the right was taken away
                self.caller.check(right, about)
        self.judged = judged

    def require_stream(self, key: str) -> None:
        """Raise ``BadRequest`` where the reply can't be streamed."""
        if not self.streams:
            raise BadRequest(f"{key}: needs protocol version 2 (say HELLO with protocol 2 first)")

    async def send(self, chunk: bytes) -> None:
        """Send a CHUNK frame; returns when the socket has taken it, so a slow reader slows its own stream."""
        await self._send(chunk)


@define
class Judged:
    """What was decided of a call that may go on; ``intent`` is the number under which that was announced."""

    call: str
    about: str
    decision: Decision
    intent: int | None = None
    began: float = field(factory=perf_counter)
