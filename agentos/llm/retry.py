"""Retry with exponential backoff and jitter, and circuit breaker for LLM providers.

No I/O: times are arguments, in seconds on any monotonic clock.
"""

import math
from collections.abc import Mapping
from enum import Enum
from random import Random
from types import TracebackType

from attrs import define

from .settings import Retry

LONGEST_AFTER = 600.0  # seconds; a provider that says "in a week", or has a wrong clock, is tried every ten minutes
LOOK_AGAIN = 0.25  # seconds between checks whether a probe has ended: its end can't be predicted


def pause(retry: Retry, attempt: int, after: float | None, random: Random) -> float:
    """Seconds to wait once attempt number ``attempt`` (the first is 1) has failed.

    Exponential, with a random factor of ± ``jitter``. If the provider said ``after``, at least that long, and the
    jitter only adds to it; an ``after`` above :data:`LONGEST_AFTER` is reduced to that.
    """
    plain = _exponential(retry, attempt)
    if after is None or math.isnan(after):
        return plain * (1 + random.uniform(-retry.jitter, retry.jitter))
    return max(plain, min(after, LONGEST_AFTER)) * (1 + random.uniform(0, retry.jitter))


def _exponential(retry: Retry, attempt: int) -> float:
    # The exponent is bounded: a float to the power of a thousand attempts overflows.
    growth = math.exp(min((attempt - 1) * math.log(retry.factor), 700.0))
    return min(retry.first * growth, retry.max)


class State(Enum):
    CLOSED = "closed"  # all requests are let through
    OPEN = "open"  # no request is, until the cooldown has ended
    HALF_OPEN = "half-open"  # one probe is under way, and no other request until it ends


class Event(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FAILED_TOO_OFTEN = "failed too often"  # as many times in a row as `breaker`, or the probe failed
    WITHDRAWN = "withdrawn"  # cancelled: the result is unknown
    PROBED = "probed"  # cooldown over, one probe is let through


NEXT: Mapping[State, Mapping[Event, State]] = {
    State.CLOSED: {
        Event.SUCCEEDED: State.CLOSED,
        Event.FAILED: State.CLOSED,
        Event.FAILED_TOO_OFTEN: State.OPEN,
        Event.WITHDRAWN: State.CLOSED,
    },
    State.OPEN: {Event.PROBED: State.HALF_OPEN},
    State.HALF_OPEN: {
        Event.SUCCEEDED: State.CLOSED,
        Event.FAILED_TOO_OFTEN: State.OPEN,
        Event.WITHDRAWN: State.OPEN,  # the cooldown is over: the next request may probe at once
    },
}


class Breaker:
    """Circuit breaker: decides by recent results whether requests are sent to a provider.

    Call :meth:`refuses` first, then :meth:`attempt` without an await in between. The result of an attempt counts only
    if the breaker hasn't changed state since the attempt began: late results neither open nor close it. Failures of one
    account in a row count as one, so one account alone can't open it: its requests may be the cause of the failures.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.state = State.CLOSED
        self.failures = 0  # in a row; consecutive failures of one account count as one
        self._failed: str | None = None  # account of the last failure
        self._cool_at = -math.inf
        self._changes = 0

    def refuses(self, now: float) -> float | None:
        """Seconds after which to try again; ``None``: a request may be sent now."""
        if self.state is State.HALF_OPEN:
            return LOOK_AGAIN
        if self.state is State.OPEN and now < self._cool_at:
            return self._cool_at - now
        return None

    def attempt(self, now: float, account: str | None = None) -> "Turn":
        """Let a request of ``account`` through; ``None`` counts as a different account each time.

        Raises ``ValueError`` if :meth:`refuses` refuses.
        """
        if self.refuses(now) is not None:
            raise ValueError(f"a breaker that is {self.state.value} lets nobody through")
        if self.state is State.OPEN:
            self._to(Event.PROBED)
        return Turn(self, self._changes, account)

    def _ended(self, turn: "Turn", event: Event, now: float) -> None:
        if turn.began_at != self._changes:
            return
        if event is Event.SUCCEEDED:
            self.failures, self._failed = 0, None
        elif event is Event.FAILED:
            if turn.account is None or turn.account != self._failed or self.state is State.HALF_OPEN:
                self.failures += 1  # a failed probe always counts, so the breaker opens again
            self._failed = turn.account
            if self.failures >= self._retry.breaker:
                event = Event.FAILED_TOO_OFTEN
                self._cool_at = now + self._retry.cooldown
        self._to(event)

    def _to(self, event: Event) -> None:
        after = NEXT[self.state][event]
        if after is not self.state:
            self.state = after
            self._changes += 1


@define(eq=False)
class Turn:
    """A request that was let through: a context manager. Left without a result, as on cancellation, it is withdrawn.

    A provider that answers at all has ``succeeded``, even if it rejects the request.
    """

    _breaker: Breaker
    began_at: int  # the breaker's number of state changes at the start
    account: str | None
    _told: bool = False

    def succeeded(self) -> None:
        self._tell(Event.SUCCEEDED, -math.inf)

    def failed(self, now: float) -> None:
        self._tell(Event.FAILED, now)

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._told:
            self._tell(Event.WITHDRAWN, -math.inf)

    def _tell(self, event: Event, now: float) -> None:
        if self._told:
            raise ValueError("an attempt ends once")
        self._told = True
        self._breaker._ended(self, event, now)
