"""When a question that failed is asked again, and when a provider that fails is left alone for a while.

Pure: times are arguments, seconds on any clock that doesn't go back.
"""

import math
from collections.abc import Mapping
from enum import Enum
from random import Random
from types import TracebackType

from attrs import define

from .settings import Retry

LONGEST_AFTER = 600.0  # seconds; who says "in a week", or whose clock is wrong, is still asked every ten minutes
LOOK_AGAIN = 0.25  # seconds until somebody looks again whether a probe has ended: nobody knows when it will


def pause(retry: Retry, attempt: int, after: float | None, random: Random) -> float:
    """Seconds to wait once attempt number ``attempt`` (the first is 1) has failed.

    Exponential, and drawn from ± ``jitter`` around it. Where the provider said ``after``, at least that long, and the
    jitter only adds to it; of an ``after`` beyond :data:`LONGEST_AFTER`, that much is obeyed.
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
    CLOSED = "closed"  # all are let through
    OPEN = "open"  # nobody is, until it has cooled down
    HALF_OPEN = "half-open"  # one is on its way, and nobody else until it is back


class Event(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FAILED_TOO_OFTEN = "failed too often"  # so many times in a row as it takes, or once more
    WITHDRAWN = "withdrawn"  # nobody will know how it would have gone
    PROBED = "probed"  # cooled down, it lets one through


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
        Event.WITHDRAWN: State.OPEN,  # still cool: the next one may go at once
    },
}


class Breaker:
    """Whether a provider is worth asking, as its last answers say.

    First :meth:`refuses`, then, without an await between the two, :meth:`attempt`. What an attempt comes to counts only
    while the breaker is as it was when that began: latecomers neither open nor close it. Nor does one party alone:
    its questions may be what the provider fails at.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.state = State.CLOSED
        self.failures = 0  # in a row, one of the same party's after the other counting as one
        self._failed: str | None = None  # whose was the last of them
        self._cool_at = -math.inf
        self._changes = 0

    def refuses(self, now: float) -> float | None:
        """Seconds after which it is worth looking again; ``None``: go."""
        if self.state is State.HALF_OPEN:
            return LOOK_AGAIN
        if self.state is State.OPEN and now < self._cool_at:
            return self._cool_at - now
        return None

    def attempt(self, now: float, party: str | None = None) -> "Turn":
        """Let one of ``party``'s through that tells how it went; ``None`` is somebody else each time.

        Raises ``ValueError`` where :meth:`refuses` refuses.
        """
        if self.refuses(now) is not None:
            raise ValueError(f"a breaker that is {self.state.value} lets nobody through")
        if self.state is State.OPEN:
            self._to(Event.PROBED)
        return Turn(self, self._changes, party)

    def _ended(self, turn: "Turn", event: Event, now: float) -> None:
        if turn.began_at != self._changes:
            return
        if event is Event.SUCCEEDED:
            self.failures, self._failed = 0, None
        elif event is Event.FAILED:
            if turn.party is None or turn.party != self._failed or self.state is State.HALF_OPEN:
                self.failures += 1  # a probe that failed is one more after too many
            self._failed = turn.party
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
    """One that was let through: a context manager. Left without a word, as when it is cancelled, it is given back.

    A provider that answers at all has ``succeeded``, even if it rejects the question.
    """

    _breaker: Breaker
    began_at: int  # so many changes of the breaker before it
    party: str | None
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
