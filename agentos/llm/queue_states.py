"""Positions of agents in the queue for the model."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from .fair_queue import FairQueue, Path
from .model_availability import ModelState


@frozen
class QueueState:
    """State of an agent's requests in the queue. ``position`` 1: its first request is the next to be chosen.

    ``paused`` of the waiting requests are for models that accept no requests at present; ``models`` has their states.
    """

    waiting: int = 0
    in_flight: int = 0
    position: int | None = None
    paused: int = 0
    models: Sequence[ModelState] = ()


def queue_states(
    queue: FairQueue[Any], aside: Counter[Path], in_flight: Counter[Path], states: Iterable[ModelState]
) -> Mapping[Path, QueueState]:
    """All agents that have requests waiting or in flight. ``states``: of models that are paused or down."""
    positions: dict[Path, int] = {}
    waiting = aside.copy()
    for position, ticket in enumerate(queue.order(), 1):
        positions.setdefault(ticket.path, position)
        waiting[ticket.path] += 1
    paused: dict[Path, Counter[str]] = {}
    for ticket in queue.parked():
        paused.setdefault(ticket.path, Counter())[ticket.lane] += 1
        waiting[ticket.path] += 1
    by_model = {state.model: state for state in states}
    return {
        path: QueueState(
            waiting[path],
            in_flight[path],
            positions.get(path),
            paused.get(path, Counter()).total(),
            tuple(by_model.get(model, ModelState(model)) for model in paused.get(path, ())),
        )
        for path in waiting.keys() | in_flight.keys()
    }
