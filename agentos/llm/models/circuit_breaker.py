"""Circuit breaker for LLM providers: refuses requests after failures in a row, then lets one probe through.

No I/O: times are arguments, in seconds on any monotonic clock.
"""

import math
from collections.abc import Mapping
from enum import Enum
from types import TracebackType

from attrs import define

from agentos.llm.settings import Retry

PROBE_POLL = 0.25  # seconds between checks whether a probe has ended: its end can't be predicted


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


class CircuitBreaker:
    """Circuit breaker: decides by recent results whether requests are sent to a provider.

    Call :meth:`refuses` first, then :meth:`attempt` without an await in between. The result of an attempt counts only
    if the breaker hasn't changed state since the attempt began: late results neither open nor close it. Failures of one
    account in a row count as one, so one account alone can't open it: its requests may be the cause of the failures.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.state = State.CLOSED
        self.failures = 0  # in a row; consecutive failures of one account count as one
        self._failed_account: str | None = None  # account of the last failure
        self._cooldown_end = -math.inf
        self._state_changes = 0

    def refuses(self, now: float) -> float | None:
        """Seconds after which to try again; ``None``: a request may be sent now."""
        if self.state is State.HALF_OPEN:
            return PROBE_POLL
        if self.state is State.OPEN and now < self._cooldown_end:
            return self._cooldown_end - now
        return None

    def attempt(self, now: float, account: str | None = None) -> "Attempt":
        """Let a request of ``account`` through; ``None`` counts as a different account each time.

        Raises ``ValueError`` if :meth:`refuses` refuses.
        """
        if self.refuses(now) is not None:
            raise ValueError(f"a breaker that is {self.state.value} refuses requests")
        if self.state is State.OPEN:
            self._apply(Event.PROBED)
        return Attempt(self, self._state_changes, account)

    def _record(self, attempt: "Attempt", event: Event, now: float) -> None:
        if attempt.state_changes != self._state_changes:
            return
        if event is Event.SUCCEEDED:
            self.failures, self._failed_account = 0, None
        elif event is Event.FAILED:
            if attempt.account is None or attempt.account != self._failed_account or self.state is State.HALF_OPEN:
                self.failures += 1  # a failed probe always counts, so the breaker opens again
            self._failed_account = attempt.account
            if self.failures >= self._retry.breaker:
                event = Event.FAILED_TOO_OFTEN
                self._cooldown_end = now + self._retry.cooldown
        self._apply(event)

    def _apply(self, event: Event) -> None:
        after = NEXT[self.state][event]
        if after is not self.state:
            self.state = after
            self._state_changes += 1


@define(eq=False)
class Attempt:
    """A request that was let through: a context manager. Left without a result, as on cancellation, it is withdrawn.

    A provider that answers at all has ``succeeded``, even if it rejects the request.
    """

    _breaker: CircuitBreaker
    state_changes: int  # the breaker's number of state changes at the start
    account: str | None
    _ended: bool = False

    def succeeded(self) -> None:
        self._end(Event.SUCCEEDED, -math.inf)

    def failed(self, now: float) -> None:
        self._end(Event.FAILED, now)

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._ended:
            self._end(Event.WITHDRAWN, -math.inf)

    def _end(self, event: Event, now: float) -> None:
        if self._ended:
            raise ValueError("an attempt ends once")
        self._ended = True
        self._breaker._record(self, event, now)
