"""What can be observed of the line to the model: its models, its queue, and what agents have used."""

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import trio
from msgspec import Struct

from agentos.services.quotas import BudgetState
from agentos_sdk.errors import NotFound
from agentos_sdk.values import Usage, Waits

from .ask import ProviderClient
from .budgets import Budgets
from .models.counts import ModelCounts
from .models.model import ModelState
from .models.routes import Routes
from .queue.fair_queue import FairQueue
from .queue.fair_tree import Path
from .queue.request import Request, State
from .queue.states import QueueState, count_by_path, queue_states
from .settings import LLMSettings, QueuePath, queue_names

FAIRNESS_SECONDS = 60.0  # seconds at least over which fairness is computed


class AgentUsage(Struct, frozen=True):
    """What an agent has used since the kernel started: requests sent, and their tokens."""

    calls: int = 0
    usage: Usage = Usage()


class LineStatus:
    """What :class:`agentos.llm.line.Line` knows, to be looked at."""

    def __init__(self, settings: LLMSettings, clients: Sequence[ProviderClient], budgets: Budgets, model: str) -> None:
        self.model = model
        self.currency = settings.currency
        self.counts = ModelCounts()
        self._clients = {each.name: each for each in clients}
        self.routes = Routes(settings, self._clients, model)
        self.budgets = budgets
        self._queue: FairQueue[Request] = FairQueue(settings.per_agent, settings.in_all, self._clients)
        self._requests: dict[Request, None] = {}  # those that have been queued and haven't ended
        self._usage: dict[Path, AgentUsage] = {}
        self._snapshots = [(trio.current_time(), self._queue.snapshot())] * 2

    def queue_states(self) -> Mapping[Path, QueueState]:
        """State of every agent that has requests waiting or in flight."""
        deferred, in_flight = count_by_path(self._deferred()), count_by_path(self.list_in_flight())
        return queue_states(self._queue, deferred, in_flight, self._unavailable_models())

    def list_waiting(self) -> list[tuple[Request, Literal["ready", "paused", "later"], int | None]]:
        """The requests that wait, in the order in which they would be sent; those that can't be sent now come last.

        ``ready``: it is sent as soon as a slot is free, the one at position 1 first; ``paused``: its model accepts none
        at present; ``later``: it waits until it is queued again.
        """
        return [
            *((ticket.item, "ready", position) for position, ticket in self._queue.order()),
            *((ticket.item, "paused", None) for ticket in self._queue.parked()),
            *((request, "later", None) for request in self._deferred()),
        ]

    @property
    def provider(self) -> str:
        """The type of the providers; ``several`` if they differ."""
        types = {client.kind or client.name for client in self._clients.values()}
        return types.pop() if len(types) == 1 else "several"

    def provider_of(self, name: str) -> str:
        """The name of the provider of a model, or of an alias's first one; empty if none has it."""
        try:
            return self.routes.client_of(self.routes.resolve(name).models[0]).name
        except NotFound:
            return ""

    def model_states(self) -> Sequence[ModelState]:
        """States of all models that the configuration names, the default one first, and of all that are unavailable."""
        unavailable = {state.model: state for state in self._unavailable_models()}
        named = [unavailable.pop(model, ModelState(model)) for model in self.routes.models()]
        return [*named, *unavailable.values()]

    def _unavailable_models(self) -> Sequence[ModelState]:
        return [state for client in self._clients.values() for state in client.models.unavailable()]

    def wait_times(self, queue_path: QueuePath) -> Waits | None:
        """How long the agent's last requests waited."""
        return self._queue.wait_times(queue_names(queue_path))

    def usage_of(self, queue_path: QueuePath) -> AgentUsage:
        return self._usage.get(queue_names(queue_path), AgentUsage())

    def budget_states(self, queue_path: QueuePath) -> Sequence[BudgetState]:
        """What is left of every budget that applies to a queue path, the outermost first."""
        return self.budgets.budget_states(queue_path, time.time())

    def refusing_budgets(self, queue_path: QueuePath) -> Sequence[BudgetState]:
        """The budgets of a queue path that have refused a question in their present window."""
        return self.budgets.refusing(queue_path, time.time())

    @property
    def depth(self) -> int:
        """How many requests wait."""
        return len(self._queue) + len(self._deferred())

    @property
    def in_flight(self) -> int:
        return len(self.list_in_flight())

    def list_in_flight(self) -> list[Request]:
        """The requests that have a slot, the one that has it longest first."""
        found = [request for request in self._requests if request.has_slot]
        return sorted(found, key=lambda request: request.slot_since or 0.0)

    def _deferred(self) -> list[Request]:
        return [request for request in self._requests if request.state is State.DEFERRED]

    def fairness(self) -> float:
        """Jain's index of the agents that have had requests waiting all through the last one to two minutes.

        Each agent's share is relative to its weight: 1 is entirely fair, 1/n means that one of n got everything.
        """
        now = trio.current_time()
        if now - self._snapshots[1][0] >= FAIRNESS_SECONDS:
            self._snapshots = [self._snapshots[1], (now, self._queue.snapshot())]
        return self._queue.fairness(self._snapshots[0][1])
