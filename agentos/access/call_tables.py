"""Call tables: chooses what answers the calls of a caller, by whether it is recorded or lives a recorded life again."""

# Callers that may make the same calls share a table: it is made once for all recorded ones, and once for the others.
# A stand-in's calls are one agent's own.

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from attrs import define, field

from agentos.kernel.caller import Replayed
from agentos.kernel.ports import Approvals, Decision
from agentos.kernel.steps import Observer
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos_sdk.opcodes import Op

MAX_TABLES = 1000


class StandIn(Replayed, Approvals, Protocol):
    """What answers the calls of an agent that lives a recorded life again, in the place of what they would do."""

    def seal(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        """The calls that this agent makes: each keeps the rights that it needs, and is answered from the recording."""

    def open(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        """The calls that it makes when none is answered from the recording any more."""

    def open_below(self, calls: Iterable[Syscall]) -> Sequence[Syscall] | None:
        """The calls of an agent that it spawns then; None if they are any agent's."""


@define(eq=False)
class CallTables:
    """The tables of all callers, by their ids. :meth:`serve` must be called before the first one is asked for."""

    authorizer: PermissionAuthorizer
    observer: Observer | None = None  # is told of all calls; set before :meth:`serve`
    recorder: Observer | None = None  # is told of the calls of callers that :attr:`is_recorded` says
    is_recorded: Callable[[int], bool] = field(default=lambda number: False)
    watch: Callable[[Syscall], Syscall] = field(default=lambda syscall: syscall)  # what a recorded caller's calls are
    _served: Sequence[Op] = ()
    _plain: Table = field(init=False)
    _recording: Table | None = None  # the same, with the recorder
    _stand_ins: dict[int, Sequence[Syscall]] = field(factory=dict)  # calls of agents that live a recorded life again
    _opened: dict[int, StandIn] = field(factory=dict)  # of agents that went live, and what they spawned
    _refusing: dict[tuple[bool, tuple[tuple[Op, Decision], ...]], Table] = field(factory=dict)

    def serve(self, calls: Sequence[Syscall]) -> None:
        self._plain = Table(calls, self.observer)
        self._served = tuple(syscall.op for syscall in calls)

    def seal(self, number: int, stand_in: StandIn) -> None:
        """Have an agent's calls answered by ``stand_in``."""
        self._stand_ins[number] = stand_in.seal(self._watched())

    def open(self, number: int, stand_in: StandIn | None) -> bool:
        """Have no call answered from a recording any more, but adapted by ``stand_in``; False if none was."""
        if self._stand_ins.pop(number, None) is None:
            return False
        if stand_in is not None:
            self._stand_ins[number] = stand_in.open(self._watched())
            self._opened[number] = stand_in
        return True

    def inherit(self, number: int, spawner: int) -> bool:
        """Have an agent's calls adapted as those of its spawner; False if they aren't."""
        stand_in = self._opened.get(spawner)
        calls = stand_in.open_below(self._watched()) if stand_in is not None else None
        if stand_in is None or calls is None:
            return False
        self._stand_ins[number], self._opened[number] = calls, stand_in
        return True

    def forget(self, number: int) -> None:
        self._stand_ins.pop(number, None)
        self._opened.pop(number, None)

    def whole(self, number: int) -> Table:
        """The table without refusals."""
        if (sealed := self._stand_ins.get(number)) is not None:
            return Table(sealed, self.recorder if self.is_recorded(number) else self.observer)
        if not self.is_recorded(number):
            return self._plain
        if self._recording is None:
            self._recording = Table(self._watched(), self.recorder)
        return self._recording

    def of(self, number: int) -> Table:
        """The table with the refusals of the caller's sets."""
        refused = tuple(self.authorizer.refused_calls(number, self._served).items())
        if number in self._stand_ins:  # what it is refused is compared, too
            return self.whole(number).with_refusals(
                {op: why for op, why in refused if self._plain.syscalls[op].prepare is None}
            )
        key = self.is_recorded(number), refused
        if key not in self._refusing:
            if len(self._refusing) >= MAX_TABLES:
                self._refusing.clear()
            self._refusing[key] = self.whole(number).with_refusals(dict(refused))
        return self._refusing[key]

    def _watched(self) -> Iterable[Syscall]:
        return map(self.watch, self._plain.syscalls.values())
