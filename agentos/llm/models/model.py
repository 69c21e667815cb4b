"""One model of one provider: whether it accepts requests is judged here, by :meth:`Model.state`, and nowhere else.

    ready    a request may be sent now
    paused   the provider answered HTTP 429 or refused the key: requests wait until a time that is known
    limited  ``rpm`` or ``tpm`` of ``[llm.limits]`` are used up: requests wait until there is room in the last minute
    down     failures in a row have opened the circuit breaker: requests fail at once, until one has probed the model

A pause and a breaker belong to one API key, a limit to all of them: a model is ready if it is with any of its keys. A
model that is down is open to one request, the probe, once its cooldown has ended. Outages, which only have aliases
prefer another model, are judged apart, in :mod:`agentos.llm.models.outages`. Times are on Trio's clock.
"""

import math
import time
from collections.abc import Sequence
from random import Random
from typing import Literal

from attrs import Factory, define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.llm.providers.provider import ProviderError, RateLimited
from agentos.llm.queue.rate_limits import RateLimit
from agentos.llm.queue.request import Request
from agentos.llm.retry import retry_delay
from agentos.llm.settings import Retry
from agentos_sdk.errors import Unavailable

from .circuit_breaker import CircuitBreaker, State


class ModelUnavailable(Unavailable):
    """The model gives no answer, or none soon; another model may. ``attempted``: the request was sent to it."""

    attempted = False


class ModelState(Struct, frozen=True):
    """``opens_at`` is when a request may be sent; ``None``: now, infinity: when the probe under way has ended.

    ``until`` is the end of the pause or cooldown; ``reason`` is the provider's message or the failure.
    """

    model: str
    state: Literal["ready", "paused", "limited", "down"] = "ready"
    until: float | None = None
    reason: str | None = None
    opens_at: float | None = None

    @property
    def is_unavailable(self) -> bool:
        """Whether its provider doesn't answer requests; a limit is our own."""
        return self.state in ("paused", "down")


@define(eq=False)
class KeyState:
    """What one API key has met with one model. Before ``paused_until`` the provider wants no request."""

    retry: Retry
    breaker: CircuitBreaker = field(
        init=False, default=Factory(lambda self: CircuitBreaker(self.retry), takes_self=True)
    )
    paused_until: float = -math.inf
    reason: str | None = None  # message of the last 429 or failure
    slowed_in_row: int = 0  # responses with 429 in a row; those already under way when a pause began count as one

    def record_slow_down(self, error: RateLimited, now: float, random: Random) -> None:
        """Begin or extend a pause."""
        if now >= self.paused_until:
            self.slowed_in_row += 1
        delay = retry_delay(self.retry, self.slowed_in_row, error.after, random)
        self.paused_until, self.reason = max(self.paused_until, now + delay), str(error)

    def pause(self, error: ProviderError, until: float) -> None:
        self.slowed_in_row = max(1, self.slowed_in_row)  # the state is kept
        self.paused_until, self.reason = max(self.paused_until, until), str(error)

    def record_answer(self, now: float) -> None:
        if now >= self.paused_until:  # else the request was sent before the pause began
            self.slowed_in_row = 0

    def state(self, model: str, now: float) -> ModelState:
        wait, breaker = self.breaker.refuses(now), self.breaker.state
        until = None if wait is None or breaker is State.HALF_OPEN else now + wait
        cooled = -math.inf if wait is None else math.inf if until is None else until
        opens_at = max(self.paused_until, cooled)
        opens = opens_at if opens_at > now else None
        if breaker is not State.CLOSED:
            return ModelState(model, "down", until, self.reason, opens)
        return ModelState(model) if opens is None else ModelState(model, "paused", opens, self.reason, opens)


@define(eq=False)
class Model:
    """``keys`` are in the order of the provider's; ``rate`` is ``None`` without limits per minute."""

    name: str
    retry: Retry
    keys: Sequence[KeyState]
    rate: RateLimit | None = None
    attempts: int = 0  # under way

    def state(self, now: float) -> ModelState:
        """The state with the key that opens first."""
        states = [key.state(self.name, now) for key in self.keys]
        best = min(states, key=lambda state: (state.state != "ready", math.inf if state.until is None else state.until))
        opens_at = min(now if state.opens_at is None else state.opens_at for state in states)
        if self.rate is not None and self.rate.opens_at > opens_at:
            limited = "limited" if best.state == "ready" else best.state
            return replace(best, state=limited, opens_at=self.rate.opens_at)
        return replace(best, opens_at=opens_at if opens_at > now else None)

    def patience(self, request: Request) -> float:
        """Seconds for which a request waits for it while it is paused."""
        return self.retry.patience if request.fallback_after is None else request.fallback_after

    def check(self, request: Request, now: float) -> float | None:
        """Return when a request may be sent, ``None``: now; raise ``ModelUnavailable`` if it can't wait so long.

        This is so while the circuit breaker is open, and in a pause that ends after the request's deadline or lasts
        longer than ``retry.patience``, or ``fallback_after`` if there is another model.
        """
        opens = self.state(now).opens_at
        if opens is None:
            return None
        closed = [key for key in self.keys if key.state(self.name, now).opens_at is not None]
        waiting = [key for key in closed if key.breaker.state is not State.OPEN or key.breaker.refuses(now) is None]
        if len(closed) == len(self.keys) and not waiting:
            times = f"{self.retry.breaker} times in a row, the last time: {closed[0].reason}"
            raise ModelUnavailable(f"the model's provider has failed {times}: try again in {math.ceil(opens - now)} s")
        limit = min(request.deadline, request.retry_deadline, now + self.patience(request))
        if opens == math.inf or opens <= max(now, limit):
            return opens
        until = time.time() + opens - now
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(math.ceil(until)))
        setting = "retry.patience" if request.fallback_after is None else "fallback_after"
        why = "the call's deadline" if limit == request.deadline else f"{setting} ({self.patience(request):g} s)"
        tried = f" (asked {request.attempts} times)" if request.attempts > 1 else ""
        if len(closed) < len(self.keys):
            raise ModelUnavailable(
                f"{self.name} has had as many requests or tokens as [llm.limits] allows a minute until {when}, "
                f"which is after {why}{tried}",
                until=until,
            )
        first = min(waiting, key=lambda key: key.paused_until)
        raise ModelUnavailable(
            f"the model's provider accepts no requests for {self.name} until {when}, "
            f"which is after {why}: {first.reason}{tried}",
            until=until,
            upstream_status=429,
        )

    @property
    def idle(self) -> bool:
        """Whether it has no state to keep."""
        return (
            not self.attempts
            and self.rate is None
            and not any(key.slowed_in_row or key.breaker.failures for key in self.keys)
        )
