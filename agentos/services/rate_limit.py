"""Rate limit: a token bucket. It limits how often an agent spawns or emits events, and lines of the kernel's log."""

from attrs import define


@define
class Rate:
    """At most ``burst`` events at once, and ``per_second`` in the long run. Time is an argument, in seconds."""

    per_second: float
    burst: float
    _level: float = 0.0  # used part of the burst
    _at: float = 0.0

    def wait(self, now: float) -> float:
        """Seconds until one more event is allowed; 0 means allowed, and counts the event."""
        level = max(0.0, self._level - (now - self._at) * self.per_second)
        if level + 1 > self.burst:
            return (level + 1 - self.burst) / self.per_second
        self._level, self._at = level + 1, now
        return 0.0
