"""Per-model pause after HTTP 429 and circuit breaker: which models accept requests at present.

One :class:`Gates` belongs to one connection: one provider with one key. So a pause holds for one provider, model and
key. No I/O; times are arguments, in seconds on any monotonic clock.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Literal

from attrs import define, field, frozen

from .providers.provider import ProviderError, SlowDown
from .retry import Breaker, State, pause
from .settings import Retry

MOST_MODELS = 256  # gates kept at most: agents may name any model


@frozen
class ModelState:
    """``until`` is the end of the pause or cooldown; ``reason`` is the provider's message or the failure."""

    model: str
    state: Literal["ok", "paused", "down"] = "ok"
    until: float | None = None
    reason: str | None = None


@define(eq=False)
class Gate:
    """Pause and breaker of one model. ``paused_until``: the provider wants no request for it before."""

    model: str
    retry: Retry
    breaker: Breaker = field(init=False)
    paused_until: float = -math.inf
    reason: str | None = None  # message of the last 429 or failure
    attempts: int = 0  # under way
    _slowed: int = 0  # responses with 429 in a row; those already under way when a pause began count as one

    def __attrs_post_init__(self) -> None:
        self.breaker = Breaker(self.retry)

    def slow_down(self, error: SlowDown, now: float, random: Random) -> None:
        """Begin or extend a pause."""
        if now >= self.paused_until:
            self._slowed += 1
        self.paused_until = max(self.paused_until, now + pause(self.retry, self._slowed, error.after, random))
        self.reason = str(error)

    def failed(self, error: ProviderError) -> None:
        self.reason = str(error)

    def answered(self, now: float) -> None:
        if now >= self.paused_until:  # else the request was sent before the pause began
            self._slowed = 0

    def opens_at(self, now: float) -> float | None:
        """When a request may be sent; ``None``: now. Infinity: when the breaker's probe has ended."""
        wait = self.breaker.refuses(now)
        down = -math.inf if wait is None else math.inf if self.breaker.state is State.HALF_OPEN else now + wait
        opens = max(self.paused_until, down)
        return opens if opens > now else None

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
        """Whether the gate has no state to keep."""
        return not (self.attempts or self._slowed or self.breaker.failures)


class Gates:
    """The gates of all models with state to keep; about 256 at most.

    If more are needed, the gate that opens first is dropped: at worst its model receives one request too early.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._gates: dict[str, Gate] = {}

    def get(self, model: str) -> Gate | None:
        return self._gates.get(model)

    @contextmanager
    def entered(self, model: str, now: float) -> Iterator[Gate]:
        """The model's gate, which isn't dropped while the request is under way."""
        gate = self._gates.get(model) or self._added(model, now)
        gate.attempts += 1
        try:
            yield gate
        finally:
            gate.attempts -= 1
            if gate.idle:
                del self._gates[model]

    def states(self, now: float) -> Iterator[ModelState]:
        """States of all models that have a gate."""
        return (gate.state(now) for gate in self._gates.values())

    def _added(self, model: str, now: float) -> Gate:
        if len(self._gates) >= MOST_MODELS:
            unused = (gate for gate in self._gates.values() if not gate.attempts)
            first = min(unused, key=lambda gate: gate.opens_at(now) or -math.inf, default=None)
            if first is not None:
                del self._gates[first.model]
        gate = self._gates[model] = Gate(model, self._retry)
        return gate
