"""The ordered table of children, and OTP's queries on it."""

from collections.abc import Iterator, Sequence
from typing import Literal

import trio
from attrs import define, field, frozen
from msgspec import Struct

from supervisors.child import Life
from supervisors.errors import Refused
from supervisors.exits import NORMAL, Exit
from supervisors.spec import ChildSpec, ChildType, Shutdown

State = Literal["running", "restarting", "stopped"]


@define(eq=False)
class Child:
    """One row: a spec, its current life if any, and whether a restart is due."""

    spec: ChildSpec
    life: Life | None = None
    restarting: bool = False  # a restart failed or is delayed; a message or a timer will retry
    timer: trio.CancelScope | None = None  # of the current delay
    due: float = 0.0  # trio's clock, seconds: the end of that delay
    failures: int = 0  # in a row, for the backoff
    last: Exit = NORMAL  # how the last life or start ended
    former: Life | None = None  # the life that a restart will replace

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
        """A life that has ended counts as running until the supervisor handles that event, as in OTP."""
        return "restarting" if self.restarting else "running" if self.life is not None else "stopped"

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.exit is None

    def rest(self) -> None:
        """Cancel a restart that is due."""
        self.restarting = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@frozen
class Handle:
    """Addresses one life of a child, as a pid does in OTP; names a child under simple_one_for_one.

    A restarted child has a new handle. Until the restart the handle of the previous life stays valid.
    """

    _life: Life = field(repr=False)

    @property
    def alive(self) -> bool:
        return self._life.exit is None


class ChildInfo(Struct, frozen=True):
    """A child in the reply of which_children.

    ``child`` is the value of its start handshake (a Supervisor for a nested one), None while it is stopped, or
    ``"restarting"`` while it waits for a restart. ``uptime`` is in seconds, None unless running. ``handle`` is None
    while it is stopped.
    """

    id: str  # under simple_one_for_one a number assigned by the supervisor
    child: object
    type: ChildType
    state: State
    restart: str
    significant: bool
    failures: int
    uptime: float | None
    handle: Handle | None


class Counts(Struct, frozen=True):
    """OTP's count_children: specs, live children, and specs by type, running or not."""

    specs: int
    active: int
    supervisors: int
    workers: int


class Children:
    """The children in start order. Under simple_one_for_one each child has its own row, which is removed with it."""

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
        """The row with this id; raises Refused ``not_found``."""
        if (child := self._rows.get(key)) is None:
            raise Refused("not_found", key)
        return child

    def handled(self, handle: Handle) -> Child | None:
        """The row of a handle; None once that life is over.

        Raises Refused ``not_found`` if it lives under another supervisor.
        """
        life = handle._life
        for child in self:
            if child.life is life or (child.restarting and child.former is life):
                return child
        if handle.alive:
            raise Refused("not_found", repr(life.value))
        return None

    def add(self, child: Child) -> None:
        """Append to the start order."""
        self._rows[child.id] = child

    def replace(self, children: Sequence[Child]) -> None:
        """Have these children, in this start order."""
        self._rows = {child.id: child for child in children}

    def remove(self, child: Child) -> None:
        """Remove the child and its spec."""
        child.rest()
        if self._rows.get(child.id) is child:
            del self._rows[child.id]

    def rest(self, child: Child) -> None:
        """Handle the final end of a child: temporary and dynamic children are removed, others stay as a spec."""
        child.rest()
        if not self.keeps(child):
            self.remove(child)

    def keeps(self, child: Child) -> bool:
        """Whether its spec is kept after its end."""
        return not self._simple and child.spec.restart != "temporary"

    def significant_left(self) -> bool:
        """Whether a significant child runs or waits for its restart."""
        return any(child.spec.significant and child.state != "stopped" for child in self)

    def which(self) -> tuple[ChildInfo, ...]:
        """Newest first."""
        return tuple(_info(child) for child in reversed(tuple(self)))

    def count(self) -> Counts:
        supervisors = sum(child.type == "supervisor" for child in self)
        workers = len(self._rows) - supervisors
        if self._simple:
            # As in OTP, a child that ended still counts as active here until that event is handled.
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
