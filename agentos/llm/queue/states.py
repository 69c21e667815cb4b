"""Agents and requests in the queue for the model, as values."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from agentos.llm.models.model import ModelState
from agentos.llm.settings import queue_names
from agentos_sdk.values import InLine

from .fair_queue import FairQueue
from .fair_tree import Path
from .request import Request


class QueueState(Struct, frozen=True):
    """An agent's place in the queue; ``models`` are the states of the models that its paused requests are for."""

    place: InLine = InLine()
    models: Sequence[ModelState] = ()


def count_by_path(requests: Iterable[Request]) -> Counter[Path]:
    """How many of these requests each agent has."""
    return Counter(queue_names(request.queue_path) for request in requests)


def queue_states(
    queue: FairQueue[Any], aside: Counter[Path], in_flight: Counter[Path], states: Iterable[ModelState]
) -> Mapping[Path, QueueState]:
    """All agents that have requests waiting or in flight. ``states``: of models that are paused or down."""
    positions: dict[Path, int] = {}
    waiting = aside.copy()
    for position, ticket in queue.order():
        positions.setdefault(ticket.path, position)
        waiting[ticket.path] += 1
    paused: dict[Path, Counter[str]] = {}
    for ticket in queue.parked():
        paused.setdefault(ticket.path, Counter())[ticket.lane] += 1
        waiting[ticket.path] += 1
    by_model = {state.model: state for state in states}
    return {
        path: QueueState(
            InLine(waiting[path], in_flight[path], positions.get(path), paused.get(path, Counter()).total()),
            tuple(by_model.get(model, ModelState(model)) for model in paused.get(path, ())),
        )
        for path in waiting.keys() | in_flight.keys()
    }
