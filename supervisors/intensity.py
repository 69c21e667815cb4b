"""Restart intensity: how many restarts a supervisor allows before it gives up."""

import math

from msgspec import Struct
from msgspec.structs import replace


class Intensity(Struct, frozen=True):
    """At most ``restarts`` within any ``period`` seconds.

    OTP's defaults: 1 restart in 5 s (stdlib, supervisor.erl, "Restart intensity and period"). ``math.inf`` restarts are
    never exceeded, and their times aren't kept.
    """

    restarts: float = 1
    period: float = 5.0
    times: tuple[float, ...] = ()  # of the restarts within the last period, oldest first

    def counting(self, now: float) -> "Intensity":
        """A copy with one more restart, at ``now`` seconds on any monotonic clock."""
        if self.restarts == math.inf:
            return self
        return replace(self, times=(*(time for time in self.times if now - time <= self.period), now))

    @property
    def exceeded(self) -> bool:
        """Whether the last restart was over the limit."""
        return len(self.times) > self.restarts
