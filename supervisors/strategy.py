"""Which children are restarted when one ends, how often, and when the supervisor ends, too."""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from supervisors.exits import Exit

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one"]
Restart = Literal["permanent", "transient", "temporary"]
AutoShutdown = Literal["never", "any_significant", "all_significant"]


def comes_back(restart: Restart, ending: Exit) -> bool:
    """Whether a child of this type is restarted after ``ending``: a transient one only after an abnormal end."""
    return restart == "permanent" or (restart == "transient" and not ending.clean)


def affected(strategy: Strategy, children: Sequence[str], ended: str) -> Sequence[str]:
    """The ids to restart after ``ended`` ended, in start order; ``children`` are all of them, in start order."""
    match strategy:
        case "one_for_all":
            return tuple(children)
        case "rest_for_one":
            return tuple(children[children.index(ended) :])
        case _:
            return (ended,)


def shuts_down(policy: AutoShutdown, *, significant: bool, others: bool) -> bool:
    """Whether the final end of a child also ends its supervisor.

    ``significant``: the child is. ``others``: a significant sibling runs or waits for its restart.
    """
    match policy:
        case "any_significant":
            return significant
        case "all_significant":
            return significant and not others
        case _:
            return False


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

    def count(self, now: float) -> int:
        """How many of the restarts are within the period before ``now``."""
        return sum(now - time <= self.period for time in self.times)

    @property
    def exceeded(self) -> bool:
        """Whether the last restart was over the limit."""
        return len(self.times) > self.restarts
