"""The ordered table of children, and OTP's answers about it."""

from collections.abc import Iterator
from typing import Literal

import trio
from attrs import define, field, frozen

from supervisors.child import Life
from supervisors.errors import Refused
from supervisors.exits import NORMAL, Exit
from supervisors.spec import ChildSpec, ChildType, Shutdown

State = Literal["running", "restarting", "stopped"]


@define(eq=False)
class Child:
    """One row: a spec, its current life if it has one, and whether a restart is due."""

    spec: ChildSpec
    life: Life | None = None
    restarting: bool = False  # a restart failed or is delayed; a message or a timer will try again
    timer: trio.CancelScope | None = None  # of the delay under way
    due: float = 0.0  # trio's clock, seconds: when that delay is over
    failures: int = 0  # in a row, for the backoff
    last: Exit = NORMAL  # how the last life or start ended
    former: Life | None = None  # the life a restart is to replace

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def type(self) -> ChildType:
        return self.spec.kind(self.spec.start)

    @property
    def grace(self) -> Shutdown:
        return self.spec.grace(self.type)

    @property
    def state(self) -> State:
        """A life that has ended counts as running until the supervisor comes to that news, as in OTP."""
        return "restarting" if self.restarting else "running" if self.life is not None else "stopped"

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.exit is None

    def rest(self) -> None:
        """No restart is due any longer."""
        self.restarting = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@frozen
class Handle:
    """Addresses one life of a child, as a pid does in OTP; the way to name a child under simple_one_for_one.

    A child that has been restarted has another. While it waits for its restart, that of the life before still holds.
    """

    _life: Life = field(repr=False)

    @property
    def alive(self) -> bool:
        return self._life.exit is None


@frozen
class ChildInfo:
    """What which_children tells of a child.

    ``child`` is the value of its start handshake (a Supervisor for a nested one), None while it is stopped, or
    ``"restarting"`` while it waits for a restart. ``uptime`` is in seconds, None unless running. ``handle`` is None
    while it is stopped.
    """

    id: str  # under simple_one_for_one a number the supervisor gave it
    child: object
    type: ChildType
    state: State
    restart: str
    significant: bool
    failures: int
    uptime: float | None
    handle: Handle | None


@frozen
class Counts:
    """OTP's count_children: specs, children that live now, and specs by type, running or not."""

    specs: int
    active: int
    supervisors: int
    workers: int


class Children:
    """In start order. Under simple_one_for_one each child has its own row, and goes with it."""

    def __init__(self, *, simple: bool) -> None:
        self._simple = simple
        self._rows: dict[str, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._rows.values()))

    @property
    def ids(self) -> tuple[str, ...]:
        """In start order."""
        return tuple(self._rows)

    def get(self, key: str) -> Child | None:
        return self._rows.get(key)

    def named(self, key: str) -> Child:
        """Raises Refused ``not_found``."""
        if (child := self._rows.get(key)) is None:
            raise Refused("not_found", key)
        return child

    def handled(self, handle: Handle) -> Child | None:
        """The row of a handle; None once that life is over. Raises Refused ``not_found`` for one alive elsewhere."""
        life = handle._life
        for child in self:
            if child.life is life or (child.restarting and child.former is life):
                return child
        if handle.alive:
            raise Refused("not_found", repr(life.value))
        return None

    def add(self, child: Child) -> None:
        """At the end of the start order."""
        self._rows[child.id] = child

    def remove(self, child: Child) -> None:
        """Its spec is forgotten."""
        child.rest()
        if self._rows.get(child.id) is child:
            del self._rows[child.id]

    def rest(self, child: Child) -> None:
        """It has ended and does not come back by itself: temporary and dynamic children go, others stay as a spec."""
        child.rest()
        if not self.keeps(child):
            self.remove(child)

    def keeps(self, child: Child) -> bool:
        """Whether its spec outlives it."""
        return not self._simple and child.spec.restart != "temporary"

    def significant_left(self) -> bool:
        """Whether a significant child runs, or waits for its restart."""
        return any(child.spec.significant and child.state != "stopped" for child in self)

    def which(self) -> tuple[ChildInfo, ...]:
        """Newest first."""
        return tuple(_info(child) for child in reversed(tuple(self)))

    def count(self) -> Counts:
        supervisors = sum(child.type == "supervisor" for child in self)
        workers = len(self._rows) - supervisors
        if self._simple:
            # As in OTP: here a child whose end is news yet to be read is still active.
            return Counts(1, sum(not child.restarting for child in self), supervisors, workers)
        return Counts(len(self._rows), sum(child.alive for child in self), supervisors, workers)


def _info(child: Child) -> ChildInfo:
    life = child.life
    addressed = child.former if child.restarting else life
    return ChildInfo(
        id=child.id,
        child="restarting" if child.restarting else life.value if life is not None else None,
        type=child.type,
        state=child.state,
        restart=child.spec.restart,
        significant=child.spec.significant,
        failures=child.failures,
        uptime=trio.current_time() - life.began if life is not None and life.began is not None else None,
        handle=Handle(addressed) if addressed is not None else None,
    )
