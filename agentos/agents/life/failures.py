"""Failures of an agent's recent lives, by which a crash loop is told however long each life is."""

from collections import deque

from attrs import define, field

from agentos_sdk.values import End

MANY = 20  # failures …
WINDOW = 600.0  # … within this many seconds: the log says so


@define(eq=False)
class Failures:
    """When the last lives of one agent failed, in seconds of one clock, and how the last of them ended."""

    last: End | None = None
    _times: deque[float] = field(factory=lambda: deque(maxlen=MANY))
    _told_at: float | None = None

    def add(self, now: float, end: End) -> None:
        """Note the end of a life that failed, once."""
        if end is not self.last:
            self._times.append(now)
            self.last = end

    def count(self, now: float, within: float) -> int:
        """How many lives failed in the last ``within`` seconds; at most :data:`MANY`."""
        return sum(now - time <= within for time in self._times)

    def are_due(self, now: float) -> bool:
        """Whether there were MANY within WINDOW, and that wasn't told in the last WINDOW; notes that it is told."""
        if self.count(now, WINDOW) < MANY or (self._told_at is not None and now - self._told_at < WINDOW):
            return False
        self._told_at = now
        return True
