"""Agent states and the allowed transitions between them."""

from enum import StrEnum


class State(StrEnum):
    """The agent states that LIST shows; ``failed`` means that the supervisor gave up."""

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
"""Allowed transitions.

Each life ends in ``exited``; the supervisor decides what follows. ``failed`` is left only if a further up restarts the
group of the supervisor that gave up.
"""

ALIVE = frozenset({State.STARTING, State.RUNNING, State.PAUSED, State.STOPPING})
"""States in which an agent may have a process."""
