"""Agent states, and which event leads from which state to which."""

from collections.abc import Mapping
from enum import StrEnum

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
