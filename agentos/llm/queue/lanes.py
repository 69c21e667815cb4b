"""Lanes of the queue, one for each model: closed while their model accepts no requests.

A waiting request of a closed lane that can't wait for its model moves to the lane of another one, or is refused.
"""

import math
from collections.abc import Callable

from attrs import frozen

from agentos.llm.models.model import ModelUnavailable
from agentos.llm.models.routes import Routes
from agentos_sdk.errors import CallError

from .fair_queue import FairQueue
from .fair_tree import Ticket
from .request import Request


@frozen(eq=False)
class Lanes:
    """``wake`` is called when a request may be sent that couldn't before."""

    _queue: FairQueue[Request]
    _routes: Routes
    _wake: Callable[[], None]

    def open(self) -> float:
        """Open the lanes of models that accept requests again; returns when to do so next, on Trio's clock."""
        first = math.inf
        for model in list(self._queue.closed):
            opens = self._routes.client_of(model).models.state(model).opens_at
            if opens is None:
                self._queue.open(model)
            else:
                first = min(first, opens)
        return first

    def update(self, model: str) -> None:
        """Open or close a model's lane to match its availability; requests that can't wait are moved or refused."""
        models = self._routes.client_of(model).models
        if models.state(model).opens_at is None:
            self._queue.open(model)
        else:
            self._queue.close(model)
            for ticket in self._queue.waiting_in(model):
                try:
                    models.check(ticket.item)
                except ModelUnavailable as unavailable:
                    self._send_elsewhere(ticket, unavailable)
        self._wake()

    def leave(self, model: str, error: Exception) -> None:
        """Move requests of a model to others that accept them now, after a slow failure of that model."""
        for ticket in self._queue.waiting_in(model):
            if ticket.item.fallback_after is not None:
                self._routes.choose(ticket.item, {model: f"it failed for another question: {error}"})
                self._move(ticket)

    def _send_elsewhere(self, ticket: Ticket[Request], unavailable: ModelUnavailable) -> None:
        """Let a waiting request wait for another model, or refuse it."""
        try:
            self._routes.fall_back(ticket.item, unavailable)
        except CallError as error:
            self._queue.withdraw(ticket)
            ticket.item.refuse(error)
        else:
            self._move(ticket)

    def _move(self, ticket: Ticket[Request]) -> None:
        """Let a waiting request wait for the model that it has now."""
        model = ticket.item.model
        self._queue.move(ticket, model, self._routes.client_of(model).name)
        self._wake()
