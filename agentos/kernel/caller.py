"""Who calls: known from the socket, never from what a frame says."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import trio
from attrs import define, field

from agentos_sdk.errors import ApprovalRequired, PermissionDenied

from .ports import AuditLog, Authorizer, Decision, Entry, Phase, Right

if TYPE_CHECKING:
    from .table import Table

MAX_CONNECTIONS = 64
MAX_CALLS = 256
MAX_BODIES = 64 << 20  # bytes


@define(eq=False)
class Allowance:
    """What one caller may have under way at once, over all its connections.

    ``bodies`` counts the bytes of requests that are arriving, being answered, or whose replies the peer hasn't read.
    Over the limit nothing is refused: the caller's connections are not read until there is room again.
    """

    connections: int = 0
    calls: int = 0
    bodies: int = 0
    _waiting: trio.lowlevel.ParkingLot | None = None

    @property
    def room(self) -> bool:
        """One more call may be read."""
        return self.calls < MAX_CALLS and self.has_bytes

    @property
    def has_bytes(self) -> bool:
        """A call under way may make its reply, however large."""
        return self.bodies < MAX_BODIES

    def begin(self, size: int) -> None:
        """A call with a body of ``size`` bytes is under way."""
        self.calls += 1
        self.bodies += size

    def end(self, size: int) -> None:
        """That call is over and its reply is out."""
        self.calls -= 1
        self.give_back(size)

    def reserve(self, size: int) -> None:
        """A large body of ``size`` bytes is about to arrive, or a large reply waits to be read."""
        self.bodies += size

    def give_back(self, size: int) -> None:
        """Undo :meth:`reserve`."""
        self.bodies -= size
        if self._waiting is not None and self.has_bytes:
            self._waiting.unpark_all()

    async def wait_for_room(self) -> None:
        """Return when :attr:`room` is true; at once if it is."""
        while not self.room:
            await self._wait()

    async def wait_for_bytes(self) -> None:
        """Return when :attr:`has_bytes` is true; at once if it is."""
        while not self.has_bytes:
            await self._wait()

    async def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()


Kind = Literal["operator", "agent", "guest"]


@define(eq=False)
class Caller:
    """Somebody who makes calls: an agent with all its connections, or one connection of the operator's.

    A guest is such a connection that gave rights away, for good; ``become`` does that where it can be done. ``family``
    names those who come and go together: an agent with all that it spawned, a guest's connections. ``turn`` is held
    while a thread makes out something large of this caller's: who has many of these waits behind itself.
    """

    id: int
    kind: Kind
    name: str
    table: "Table"
    authorizer: Authorizer
    audit: AuditLog
    allowance: Allowance = field(factory=Allowance)
    family: str = ""
    turn: trio.Lock = field(factory=trio.Lock)
    on_hello: Callable[[], None] | None = None
    become: "Become | None" = None

    def check(self, right: Right, about: str | None = None) -> Decision:
        """The decision, if this caller holds ``right``.

        Raises ``PermissionDenied``, or ``ApprovalRequired`` where a person would have to agree. That is written down.
        """
        decision = self.authorizer.decide(self, right)
        if decision.effect == "allow":
            return decision
        error = PermissionDenied if decision.effect == "deny" else ApprovalRequired
        refusal = error(decision.reason, rule=decision.rule)
        self.audit.note(self.entry(right.action.upper(), about_of(right, about), decision, "outcome", refusal.code))
        raise refusal

    def entry(
        self,
        call: str,
        about: str,
        decision: Decision,
        phase: Phase,
        outcome: str = "",
        duration: float | None = None,
        intent: int | None = None,
    ) -> Entry:
        """What is written down of a call of this caller's."""
        who = (self.id, self.name, self.kind)
        return Entry(*who, call, about, decision.effect, decision.rule, phase, outcome, duration, intent, self.family)


class Become(Protocol):
    """Makes an operator's connection a guest: ``name``, a level or the rules that it keeps; raises a ``CallError``."""

    async def __call__(self, caller: Caller, name: str | None, level: str | None, permissions: object) -> None: ...


def about_of(right: Right, about: str | None = None) -> str:
    """What a call concerns, for the log."""
    if about is not None:
        return about
    return str(right.object) if right.object is not None else "" if right.agent is None else f"agent {right.agent}"
