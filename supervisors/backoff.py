"""Restart delays (backoff). Beyond OTP, which restarts at once."""

import math
import random as randomness
from bisect import bisect_right

from attrs import frozen

from supervisors.errors import SpecError
from supervisors.exits import Exit, gave_up


@frozen
class Backoff:
    """Delays in seconds: ``first``, then ``min``, ``min * factor``, ... up to ``max``.

    Each is drawn from ± ``jitter`` (a fraction) around its value. A life of ``reset_after`` seconds (default twice
    ``max``) makes the next failure the first again. After ``max_failures`` failures in a row the supervisor gives up,
    as if its intensity were exceeded. Raises SpecError ``invalid_backoff``.
    """

    first: float = 0.0
    min: float = 0.2
    factor: float = 2.0
    max: float = 30.0
    jitter: float = 0.2
    reset_after: float | None = None
    max_failures: int | None = None

    def __attrs_post_init__(self) -> None:
        # Negated comparisons, so that nan is refused too: every comparison with it is false.
        for wrong, sentence in (
            (not 0 <= self.first < math.inf, f"first must be 0 s or more, not {self.first}"),
            (not 0 <= self.min <= self.max < math.inf, f"0 <= min <= max must hold, not {self.min} and {self.max}"),
            (not 1 <= self.factor < math.inf, f"factor must be 1 or more, not {self.factor}"),
            (not 0 <= self.jitter < 1, f"jitter must be a fraction from 0 up to 1, not {self.jitter}"),
            (self.reset_after is not None and not self.reset_after > 0, "reset_after must be more than 0 s"),
            (self.max_failures is not None and self.max_failures < 1, "max_failures must be 1 or more"),
        ):
            if wrong:
                raise SpecError("invalid_backoff", f"backoff: {sentence}")

    @property
    def healthy_after(self) -> float:
        """Seconds of uptime after which earlier failures are forgotten."""
        return 2 * self.max if self.reset_after is None else self.reset_after


def delay(backoff: Backoff, failures: int, random: randomness.Random) -> float:
    """Seconds to wait after the ``failures``-th failure in a row; 0 counts as 1."""
    plain = backoff.first
    if failures > 1:
        # The exponent is bounded: a float overflows after about a thousand failures.
        doublings = min(failures - 2, 1024)
        growth = math.exp(min(doublings * math.log(backoff.factor), 700.0))
        plain = min(backoff.min * growth, backoff.max)
    return plain * (1 + random.uniform(-backoff.jitter, backoff.jitter))


def failures_after(backoff: Backoff, failures: int, ending: Exit, uptime: float) -> int:
    """The failures in a row after a life of ``uptime`` seconds ended with ``ending``.

    A clean exit does not count, except that of a supervisor that gave up: its reason is ``shutdown``, but it failed.
    """
    before = 0 if uptime >= backoff.healthy_after else failures
    return before if ending.clean and not gave_up(ending) else before + 1


def fastest(backoff: Backoff, restarts: int) -> float:
    """The minimum seconds from the first to the last of ``restarts`` restarts of a child that dies at once."""
    if restarts < 2:
        return 0.0
    later = restarts - 2  # delays after the first one: some grow, the rest stay at the maximum
    if not (backoff.factor > 1 and 0 < backoff.min < backoff.max):
        return (backoff.first + later * backoff.min) * (1 - backoff.jitter)
    growth = math.log(backoff.factor)
    growing = min(later, math.ceil((math.log(backoff.max) - math.log(backoff.min)) / growth))
    # From the longest of them down: max / min, or a power of the factor, may be more than a float can hold.
    longest = math.exp(math.log(backoff.min) + (growing - 1) * growth)
    grown = longest * math.expm1(-growing * growth) / math.expm1(-growth)
    return (backoff.first + grown + (later - growing) * backoff.max) * (1 - backoff.jitter)


def reachable(backoff: Backoff, period: float, at_most: int) -> int:
    """The highest intensity up to ``at_most`` that such a child can exceed within ``period`` seconds."""
    return bisect_right(range(1, at_most + 2), period, key=lambda restarts: fastest(backoff, restarts)) - 1
