"""The life cycle of an agent as tables: which event leads from which state to which, and what is wished of it.

Problem: callers, schedules, reloads and supervisors want something of an agent, at the same time. Flags that each of
them sets and reads leave combinations that were never decided.
Idea: what has happened is the state, which events change (:data:`NEXT`). What is to become of the agent is its
:class:`Wish`, which callers change. Code that is about to start an agent, or finds it ended, reads the next step from
a table (:data:`AT_START`, :data:`AT_END`).
Must stay true: a stopped agent begins no life until it is released; only methods of this module change a wish, and
only the registry changes a state (decision 100).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from attrs import define

from agentos.services.events import (
    AgentEvent,
    AgentExited,
    AgentFailed,
    AgentOver,
    AgentPaused,
    AgentReady,
    AgentRestarting,
    AgentResumed,
    AgentSpawned,
    AgentStopped,
    AgentStopping,
    AgentUnhealthy,
    AgentWaiting,
)


class State(StrEnum):
    """The agent states that LIST shows. ``failed``: the supervisor gave up. ``stopped``: by request, until START.

    ``waiting``: there is no reason to run it now; its schedule, say, starts it.
    """

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    BACKING_OFF = "backing_off"
    STOPPED = "stopped"
    WAITING = "waiting"
    EXITED = "exited"
    FAILED = "failed"


NEXT: Mapping[State, Mapping[type[AgentEvent], State]] = {
    State.STARTING: {  # also the state before the first life
        AgentSpawned: State.STARTING,
        AgentReady: State.RUNNING,
        AgentExited: State.EXITED,
        AgentOver: State.EXITED,
    },
    State.RUNNING: {
        AgentPaused: State.PAUSED,
        AgentUnhealthy: State.RUNNING,  # until its process has ended
        AgentStopping: State.STOPPING,
        AgentExited: State.EXITED,
        AgentOver: State.EXITED,
    },
    State.PAUSED: {
        AgentResumed: State.RUNNING,
        AgentStopping: State.STOPPING,
        AgentExited: State.EXITED,
        AgentOver: State.EXITED,
    },
    State.STOPPING: {AgentExited: State.EXITED, AgentOver: State.EXITED},
    State.EXITED: {
        AgentSpawned: State.STARTING,
        AgentRestarting: State.BACKING_OFF,
        AgentFailed: State.FAILED,
        AgentExited: State.EXITED,
        AgentStopped: State.STOPPED,
        AgentWaiting: State.WAITING,
        AgentOver: State.EXITED,
    },
    State.BACKING_OFF: {
        AgentSpawned: State.STARTING,
        AgentExited: State.EXITED,  # terminated before its restart
        AgentFailed: State.FAILED,
        AgentOver: State.EXITED,
    },
    State.FAILED: {
        AgentSpawned: State.STARTING,  # a supervisor further up restarts the group
        AgentFailed: State.FAILED,  # the supervisor above gives up because of it, too
        AgentStopped: State.STOPPED,
        AgentWaiting: State.WAITING,
        AgentOver: State.FAILED,
    },
    State.STOPPED: {
        AgentSpawned: State.STARTING,
        AgentFailed: State.STOPPED,  # its group is given up because of what happened before
        AgentStopped: State.STOPPED,
        AgentWaiting: State.WAITING,  # started, until there is a reason to run it
        AgentOver: State.STOPPED,
    },
    State.WAITING: {
        AgentSpawned: State.STARTING,
        AgentWaiting: State.WAITING,  # its group is started again
        AgentFailed: State.FAILED,  # it can't be started, or its group is given up
        AgentStopped: State.STOPPED,
        AgentOver: State.EXITED,  # a reload has removed it
    },
}
"""The next state by state and event; an event that isn't listed for a state is a bug.

Each life ends in ``exited``; the supervisor, or a request to stop, decides what follows. ``AgentOver`` is listed
everywhere: when the kernel is stopped by force the agents' supervisors end without a report.
"""

ALIVE = frozenset({State.STARTING, State.RUNNING, State.PAUSED, State.STOPPING})
"""States in which an agent may have a process."""


class Wanted(StrEnum):
    """What is to become of an agent. ``wait``: run when there is a reason. ``end``: end, without a word about later."""

    RUN = "run"
    WAIT = "wait"
    STOP = "stop"
    END = "end"


class Step(StrEnum):
    """What happens to an agent whose start is due."""

    BEGIN = "begin"
    REST = "rest"  # it waits
    DECLINE = "decline"


AT_START: Mapping[Wanted, Step] = {
    Wanted.RUN: Step.BEGIN,
    Wanted.WAIT: Step.REST,
    Wanted.STOP: Step.DECLINE,
    Wanted.END: Step.BEGIN,  # its group is restarted before it has ended; what ends it ends this life, too
}
"""The next step of an agent that a supervisor is about to start, in whatever state."""

AT_END: Mapping[State, Mapping[Wanted, type[AgentStopped | AgentWaiting]]] = {
    State.EXITED: {Wanted.WAIT: AgentWaiting, Wanted.STOP: AgentStopped},
    State.FAILED: {Wanted.STOP: AgentStopped},  # given up: it waits only when it was started again
    State.STOPPED: {Wanted.STOP: AgentStopped},
}
"""The event that follows ``AgentOver`` by state and wish: its supervisor restarts it no more."""


@define(eq=False)
class Wish:
    """What callers, schedules and reloads want of an agent. Only its methods change it."""

    stopped_by: str | None = None  # the caller that stopped it; until START it declines to start
    stops: tuple[object, ...] = ()  # the STOPs since then that have ended it, or are about to
    kept: bool = False  # it stays stopped when the next kernel starts
    dismissed: bool = False  # it is being stopped for good, or until START
    removed: bool = False  # it was declared, and a reload has removed it
    woken: bool = False  # one that waits otherwise: it is being started, or runs
    requested: bool = False  # its next life is begun by START or RESTART
    grace: float | None = None  # seconds between SIGTERM and SIGKILL; set by KILL, for this stop only
    at_next_start: Callable[[], None] | None = None  # a reload has changed what its next life has to be

    def stop(self, by: str, stop: object = None) -> None:
        """``stop`` is the STOP that ends it, if it hasn't ended."""
        self.stopped_by = by
        self.stops += (stop,) if stop is not None else ()

    def cancel_stop(self, stop: object, over: bool) -> None:
        """Undo a STOP that hasn't begun to end it, unless another one is about to."""
        self.stops = tuple(other for other in self.stops if other is not stop)
        if not over and not self.stops:
            self.stopped_by, self.dismissed = None, False

    def keep_stopped(self, by: str | None = None) -> None:
        """Have it stay stopped when the next kernel starts; ``by``: as a former kernel was told."""
        self.stopped_by = by or self.stopped_by
        self.kept = self.stopped_by is not None

    def release(self) -> None:
        """Let it start that was stopped; one that is ending still ends."""
        self.stopped_by, self.kept, self.stops = None, False, ()

    def dismiss(self) -> None:
        self.dismissed = True

    def renew(self) -> None:
        """Forget how it was to end: it has ended."""
        self.dismissed, self.grace = False, None

    def remove(self) -> None:
        self.removed = True

    def wake(self, woken: bool = True) -> None:
        self.woken = woken

    def request_start(self, requested: bool = True) -> None:
        """Have its next life, if this is about to begin it, count as no restart."""
        self.requested = requested

    def limit_grace(self, seconds: float) -> None:
        self.grace = seconds

    def change_later(self, change: Callable[[], None]) -> None:
        """Have it become what a reload asks for when its next life begins."""
        self.at_next_start = change

    def take_changes(self) -> None:
        """Become what a reload has asked for since its last life began."""
        change, self.at_next_start = self.at_next_start, None
        if change is not None:
            change()
