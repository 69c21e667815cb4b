"""The states of an agent and the ways between them."""

from enum import StrEnum


class State(StrEnum):
    """What LIST shows; ``failed`` means that its supervisor gave up."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    BACKING_OFF = "backing_off"
    EXITED = "exited"
    FAILED = "failed"


NEXT: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RUNNING, State.EXITED}),
    State.RUNNING: frozenset({State.PAUSED, State.STOPPING, State.EXITED}),
    State.PAUSED: frozenset({State.RUNNING, State.STOPPING, State.EXITED}),
    State.STOPPING: frozenset({State.EXITED}),
    State.EXITED: frozenset({State.STARTING, State.BACKING_OFF, State.FAILED}),
    State.BACKING_OFF: frozenset({State.STARTING, State.EXITED, State.FAILED}),
    State.FAILED: frozenset({State.STARTING}),
}
"""Each life ends in ``exited``; what follows is up to the supervisor. ``failed`` leads on only where a supervisor
further up restarts the group of the one that gave up."""

ALIVE = frozenset({State.STARTING, State.RUNNING, State.PAUSED, State.STOPPING})
"""States in which there may be a process."""
