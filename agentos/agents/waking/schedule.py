"""What starts an agent that waits: a schedule, which is an interval or a cron expression, a message or an event. Pure.

Times are seconds since the epoch. ``last`` is the time that a schedule has reached: of its last run, or of a run that
was skipped. What is due next follows from it and from the present time alone, so that it holds over a kernel's end.

Cron expressions mean what they mean to cron(8) of Debian, also where the clock changes: a time of the day that is
skipped when summer time begins is due at the first minute after the gap, and one that occurs twice when it ends is due
once; ``*`` in the minutes or the hours means each of these as they pass. A clock that was set back by less than
:data:`CORRECTION` repeats no such time of the day; by more, it was wrong before. Other schedules go by the new time,
but for steps below :data:`STEP`, which synchronized clocks make.
"""

import functools
import math
import os
from datetime import datetime, tzinfo
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import attrs
from cronsim import CronSim, CronSimError

from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.encoding.quantities import duration

CORRECTION = 3 * 3600.0  # seconds; cron(8): "changes of less than 3 hours"
STEP = 60.0  # seconds
FIELDS = 5  # of a cron expression; a library's sixth, seconds, is not cron's
LONGEST = 366 * 86400  # seconds between two runs
LOCAL_ZONE = "/etc/localtime"


def is_cron(text: str) -> bool:
    """Whether it is a cron expression that has a next time."""
    try:
        return len(text.split()) == FIELDS and next(CronSim(text, datetime(2024, 1, 1)), None) is not None
    except CronSimError:
        return False


def is_timezone(name: str) -> bool:
    try:
        return ZoneInfo(name) is not None
    except (OSError, ValueError, KeyError):  # a directory, a path, an unknown name
        return False


@functools.cache
def find_local_zone() -> tzinfo:
    """The host's time zone: that of ``TZ``, of ``/etc/localtime``, otherwise UTC. Blocks the first time."""
    if is_timezone(name := os.environ.get("TZ", "").removeprefix(":")):
        return ZoneInfo(name)
    try:
        with open(LOCAL_ZONE, "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return ZoneInfo("UTC")


@attrs.frozen(kw_only=True)
class Schedule:
    """``schedule = {...}``: exactly one of ``every``, in seconds, and ``cron``, in ``timezone`` or the host's.

    Each run begins up to ``jitter`` seconds late, drawn anew. ``catch_up``: if a time passed while no kernel ran, the
    agent runs once when the next one starts.
    """

    every: Annotated[Seconds, Rule(lambda every: 1 <= every <= LONGEST, "a duration from 1s to 366d")] | None = None
    cron: Annotated[str, Rule(is_cron, 'five fields as in crontab(5) that have a next time, as "0 3 * * 1-5"')] | (
        None
    ) = None
    timezone: Annotated[str, Rule(is_timezone, 'a time zone that this host knows, as "Europe/Berlin"')] | None = None
    jitter: Annotated[Seconds, Rule(lambda jitter: 0 <= jitter <= 86400, "a duration of at most 1d")] = Seconds(0.0)
    catch_up: bool = False

    def __attrs_post_init__(self) -> None:
        if (self.every is None) == (self.cron is None):
            raise ValueError("expected exactly one of every and cron")
        if self.every is not None and self.timezone is not None:
            raise ValueError("timezone: only times of cron are in a time zone: leave it out")
        if self.every is not None and self.jitter >= self.every:
            raise ValueError("jitter: expected less than every: runs would be skipped")
        if self.timezone is None:
            find_local_zone()  # it is read here, where reading a file may take its time

    def __str__(self) -> str:
        if self.every is not None:
            return f"every {duration(self.every)}"
        return f"cron {self.cron}{f' {self.timezone}' if self.timezone is not None else ''}"

    def find_next(self, after: float) -> float:
        """The first time after this one."""
        if self.every is not None:
            return after + self.every
        zone = ZoneInfo(self.timezone) if self.timezone is not None else find_local_zone()
        times = CronSim(self.cron or "", datetime.fromtimestamp(after, zone))
        # Its first ones aren't later where the clock shows an hour for the second time.
        return next(at for at in (one.timestamp() for one in times) if at > after)

    def has_fixed_times(self) -> bool:
        """Whether it names times of the day."""
        return self.cron is not None and not any(part.startswith("*") for part in self.cron.split()[:2])

    def correct(self, last: float, now: float) -> float:
        """``last``, or ``now`` if the clock was set back so that times between both come again."""
        allowed = CORRECTION if self.has_fixed_times() else min(STEP, self.every or STEP)
        return last if last - now < allowed else now

    def find_first(self, last: float, now: float) -> float:
        """When a kernel's first run is due: a time that has passed counts only if the schedule catches up."""
        due = self.find_next(last)
        return due if due > now or self.catch_up else self.find_next(self.reach(last, now))

    def reach(self, last: float, now: float) -> float:
        """The last time that isn't after ``now``, of which there is one after ``last``; times between are passed over.

        An interval keeps its distance from the first run.
        """
        if self.every is None:
            return now
        reached = last + math.floor((now - last) / self.every) * self.every
        return reached if reached + self.every > now else now  # where a sum is rounded


@attrs.frozen(kw_only=True)
class OnEvent:
    """``start = {...}``: events of this type, or with ``*`` at the end of these types.

    ``prefix``: of STATE_CHANGED only keys that begin with it.
    """

    on_event: str
    prefix: str | None = None

    def __str__(self) -> str:
        return f"event {self.on_event}{f' {self.prefix}' if self.prefix is not None else ''}"


StartReason = Literal["on_message"] | OnEvent
