"""Per-model pause after a rate limit (HTTP 429), and circuit breaker: which models accept requests at present.

One :class:`ModelAvailabilities` belongs to one connection: one provider with one key. So a pause holds for one
provider, model and key. No I/O; times are arguments, in seconds on any monotonic clock.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Literal

from attrs import define, field
from msgspec import Struct

from agentos.llm.providers.provider import ProviderError, RateLimited
from agentos.llm.retry import retry_delay
from agentos.llm.settings import Retry

from .circuit_breaker import CircuitBreaker, State

MAX_MODELS = 256  # models kept at most: agents may name any model


class ModelState(Struct, frozen=True):
    """``until`` is the end of the pause or cooldown; ``reason`` is the provider's message or the failure.

    Unlike the SDK's, ``until`` is on the caller's monotonic clock.
    """

    model: str
    state: Literal["ok", "paused", "down"] = "ok"
    until: float | None = None
    reason: str | None = None


@define(eq=False)
class ModelAvailability:
    """Pause after HTTP 429 and circuit breaker of one model. Before ``paused_until`` the provider wants no request."""

    model: str
    retry: Retry
    breaker: CircuitBreaker = field(init=False)
    paused_until: float = -math.inf
    reason: str | None = None  # message of the last 429 or failure
    attempts: int = 0  # under way
    _slowed_in_row: int = 0  # responses with 429 in a row; those already under way when a pause began count as one

    def __attrs_post_init__(self) -> None:
        self.breaker = CircuitBreaker(self.retry)

    def record_slow_down(self, error: RateLimited, now: float, random: Random) -> None:
        """Begin or extend a pause."""
        if now >= self.paused_until:
            self._slowed_in_row += 1
        self.paused_until = max(
            self.paused_until, now + retry_delay(self.retry, self._slowed_in_row, error.after, random)
        )
        self.reason = str(error)

    def pause(self, error: ProviderError, until: float) -> None:
        self._slowed_in_row = max(1, self._slowed_in_row)  # the state is kept
        self.paused_until, self.reason = max(self.paused_until, until), str(error)

    def record_failure(self, error: ProviderError) -> None:
        self.reason = str(error)

    def record_answer(self, now: float) -> None:
        if now >= self.paused_until:  # else the request was sent before the pause began
            self._slowed_in_row = 0

    def available_at(self, now: float) -> float | None:
        """When a request may be sent; ``None``: now. Infinity: when the breaker's probe has ended."""
        wait = self.breaker.refuses(now)
        down = -math.inf if wait is None else math.inf if self.breaker.state is State.HALF_OPEN else now + wait
        available = max(self.paused_until, down)
        return available if available > now else None

    def is_down(self, now: float) -> bool:
        """Whether the breaker is open, so that requests fail at once."""
        return self.breaker.state is State.OPEN and self.breaker.refuses(now) is not None

    def state(self, now: float) -> ModelState:
        if self.breaker.state is not State.CLOSED:
            wait = self.breaker.refuses(now)
            until = None if wait is None or self.breaker.state is State.HALF_OPEN else now + wait
            return ModelState(self.model, "down", until, self.reason)
        if now < self.paused_until:
            return ModelState(self.model, "paused", self.paused_until, self.reason)
        return ModelState(self.model)

    @property
    def idle(self) -> bool:
        """Whether the availability has no state to keep."""
        return not (self.attempts or self._slowed_in_row or self.breaker.failures)


class ModelAvailabilities:
    """The availability of each model with state to keep; about 256 at most.

    If more are needed, the availability that ends first is dropped: at worst its model receives one request too early.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._by_model: dict[str, ModelAvailability] = {}

    def get(self, model: str) -> ModelAvailability | None:
        return self._by_model.get(model)

    def available_at(self, model: str, now: float) -> float | None:
        """See :meth:`ModelAvailability.available_at`."""
        availability = self._by_model.get(model)
        return None if availability is None else availability.available_at(now)

    @contextmanager
    def tracked(self, model: str, now: float) -> Iterator[ModelAvailability]:
        """The model's availability, which isn't dropped while the request is under way."""
        availability = self._by_model.get(model) or self._add(model, now)
        availability.attempts += 1
        try:
            yield availability
        finally:
            availability.attempts -= 1
            if availability.idle:
                del self._by_model[model]

    def states(self, now: float) -> Iterator[ModelState]:
        """States of all models that have state to keep."""
        return (one.state(now) for one in self._by_model.values())

    def _add(self, model: str, now: float) -> ModelAvailability:
        if len(self._by_model) >= MAX_MODELS:
            unused = (one for one in self._by_model.values() if not one.attempts)
            first = min(unused, key=lambda availability: availability.available_at(now) or -math.inf, default=None)
            if first is not None:
                del self._by_model[first.model]
        availability = self._by_model[model] = ModelAvailability(model, self._retry)
        return availability
