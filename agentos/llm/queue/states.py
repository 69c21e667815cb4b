"""Agents and requests in the queue for the model, as values."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import trio
from msgspec import Struct

from agentos.llm.models.model import ModelState
from agentos_sdk.values import InLine, LLMClass

from .fair_queue import FairQueue
from .fair_tree import Path
from .request import Request, queue_names


class QueueState(Struct, frozen=True):
    """An agent's place in the queue; ``models`` are the states of the models that its paused requests are for."""

    place: InLine = InLine()
    models: Sequence[ModelState] = ()


class WaitingRequest(Struct, frozen=True):
    """A request that waits for ``model``, asked by ``agent``.

    ``state`` is ``ready``: it is sent as soon as there is a place, ``position`` 1 next; ``paused``: its model accepts
    none at present; ``later``: it waits to be sent again, or for budget that other requests have reserved. ``since`` is
    how many seconds ago it arrived.
    """

    agent: str
    model: str
    state: Literal["ready", "paused", "later"]
    position: int | None
    since: float
    tokens: int  # of its input, estimated
    class_: LLMClass


class SentRequest(Struct, frozen=True):
    """A request that the provider is answering: ``since`` so many seconds, with these tokens used so far."""

    agent: str
    model: str
    since: float
    tokens: int


def list_waiting(queue: FairQueue[Request], deferred: Iterable[Request]) -> list[WaitingRequest]:
    """The requests that wait, in the order in which they would be sent; those that can't be sent now come last."""
    now = trio.current_time()

    def describe(
        request: Request, state: Literal["ready", "paused", "later"], position: int | None = None
    ) -> WaitingRequest:
        name, since = request.queue_path[-1].name, now - request.arrived_at
        return WaitingRequest(name, request.model, state, position, since, request.input, request.class_)

    return [
        *(describe(ticket.item, "ready", position) for position, ticket in queue.order()),
        *(describe(ticket.item, "paused") for ticket in queue.parked()),
        *(describe(request, "later") for request in deferred),
    ]


def describe_sent(request: Request) -> SentRequest:
    since = trio.current_time() - (request.slot_since or 0.0)
    return SentRequest(request.queue_path[-1].name, request.model, since, request.attempt.usage.total or request.input)


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
