"""Callers: the identity behind a connection, its limits and its permission checks.

The identity comes from the socket, never from the contents of a frame.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol

import trio
from attrs import define, field

from agentos_sdk.errors import CallError

from .call_counts import CallCounts
from .ports import Approvals, AuditLog, Authorizer, Decision, Entry, Phase, Right

if TYPE_CHECKING:
    from .table import Table

MAX_CONNECTIONS = 64
MAX_CALLS = 256
MAX_BODY_BYTES = 64 << 20  # bytes


@define(eq=False)
class Allowance:
    """Limits on what one caller may have in flight over all its connections.

    ``requests`` counts the bytes of requests that are arriving or being answered, ``replies`` those of replies that the
    peer hasn't read. Nothing is refused above a limit: the caller's connections are not read until there is room again.

    ``sharers`` is how many connections share what one caller may read and answer before others: at least 1.
    """

    connections: int = 0
    sharers: int = 1
    calls: int = 0
    requests: int = 0
    replies: int = 0
    _waiting: trio.lowlevel.ParkingLot | None = None

    def add_connections(self, more: int) -> None:
        """Count so many connections more, or fewer."""
        self.connections += more
        self.sharers = max(1, self.connections)

    @property
    def has_room(self) -> bool:
        """Whether one more call may be read."""
        return self.calls < MAX_CALLS and self.requests + self.replies < MAX_BODY_BYTES

    def take(self, requests: int = 0, *, replies: int = 0, calls: int = 0) -> None:
        """Count bytes of requests and of replies, and calls in flight, until they are given back."""
        self.requests += requests
        self.replies += replies
        self.calls += calls

    def give_back(self, requests: int = 0, *, replies: int = 0, calls: int = 0) -> None:
        """Undo :meth:`take`."""
        self.requests -= requests
        self.replies -= replies
        self.calls -= calls
        if self._waiting is not None:
            self._waiting.unpark_all()

    async def wait_for_room(self) -> None:
        """Return when :attr:`has_room` is true, immediately if it already is."""
        while not self.has_room:
            await self._wait()

    async def wait_for_call(self) -> None:
        """Return when a call whose body is counted already may begin, immediately if it may."""
        while self.calls >= MAX_CALLS:
            await self._wait()

    async def wait_for_reply_room(self) -> None:
        """Return when a call in flight may produce its reply, of any size, immediately if it may.

        Requests don't count: each is held until its own reply is sent, so calls would wait for each other for ever.
        """
        while self.replies >= MAX_BODY_BYTES:
            await self._wait()

    async def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()


@define(eq=False)
class Activity:
    """Signs of life of one caller, over all its connections; a watchdog looks at them.

    ``at`` is when input of the caller arrived last, or the wait of a call ended, in the time of ``perf_counter()``.
    ``waiting`` is the number of its calls that wait in the kernel; one that waits for its caller to read isn't counted.
    """

    at: float = 0.0
    waiting: int = 0

    def end_wait(self) -> None:
        """A call doesn't wait any longer: from now on the caller has to do something."""
        self.waiting -= 1
        self.at = perf_counter()


Kind = Literal["operator", "agent", "guest"]


class Replayed(Protocol):
    """The recorded life that an agent lives again. ``id`` and ``name`` are what the recorded one was told.

    ``hash_seed`` is the one that its program had, if that is known.
    """

    id: int
    name: str
    hash_seed: int | None
    live: trio.Event  # the recording is over, and the agent goes on

    @property
    def keeps_name(self) -> bool:
        """Whether HELLO tells this id and name also when it goes on."""

    def note_connection(self) -> None:
        """A program in its jail tried to reach the network, which was refused."""

    def count_unsent(self, pid: int) -> AbstractContextManager[None]:
        """Count, within it, what can't leave the network namespace of this process for want of a route."""


@define(eq=False)
class Caller:
    """The identity that makes calls: an agent with all its connections, or one connection of the operator.

    A guest is an operator's connection that gave up rights permanently; ``become`` does that where it is possible: it
    takes the caller, the guest's name, a level or rules, and whether its mailbox is kept, and raises a ``CallError``.
    ``family`` groups callers that count together for limits: an agent with all its descendants, a guest's connections.
    ``greeted`` is set at HELLO; an agent gets a new one for each life.
    ``approvals``: where its calls wait for a person; None: what needs approval is refused. ``uid`` is that of the
    process that connected to the operator's socket.
    ``replayed``: it is an agent that lives a recorded life again, ``told``: or goes on under the id and name of one.
    ``turn`` is held while a thread parses a large body or value of this caller; its other large requests wait for it.
    """

    id: int
    kind: Kind
    name: str
    table: "Table"
    authorizer: Authorizer
    audit: AuditLog
    allowance: Allowance = field(factory=Allowance)
    activity: Activity = field(factory=Activity)
    family: str = ""
    _turn: trio.Lock | None = None
    greeted: trio.Event = field(factory=trio.Event)
    become: "Callable[[Caller, str | None, str | None, object, bool], Awaitable[None]] | None" = None
    approvals: Approvals | None = None
    uid: int | None = None
    counts: CallCounts = field(factory=CallCounts)
    replayed: Replayed | None = None
    told: Replayed | None = None

    @property
    def shown_name(self) -> str:
        """Its name for people: ``operator`` for each connection of the operator."""
        return "operator" if self.kind == "operator" else self.name

    @property
    def turn(self) -> trio.Lock:
        """Made when it is first needed: most callers never send a large body."""
        if self._turn is None:
            self._turn = trio.Lock()
        return self._turn

    def refuse(self, right: Right, decision: Decision, about: str | None = None) -> CallError:
        """Record a refusal; returns ``PermissionDenied``, or ``ApprovalRequired`` for a rule that asks."""
        refusal = decision.refusal
        self.audit.note(
            self.entry(right.action.upper(), describe_object(right, about), decision, "outcome", refusal.code)
        )
        return refusal

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
        """The audit log entry for a call of this caller."""
        caller, by = (self.id, self.name, self.kind), (decision.effect, decision.rule)
        return Entry(*caller, call, about, *by, phase, outcome, duration, intent, self.family, decision.reason)


def describe_object(right: Right, about: str | None = None) -> str:
    """The audit log's description of a call's object."""
    if about is not None:
        return about
    return str(right.object) if right.object is not None else "" if right.agent is None else f"agent {right.agent}"
