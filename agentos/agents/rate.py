"""How often something may happen: a token bucket."""

from attrs import define


@define
class Rate:
    """At most ``burst`` at once, and ``per_second`` in the long run. Time is an argument, in seconds."""

    per_second: float
    burst: float
    _level: float = 0.0  # how much of the burst is used up
    _at: float = 0.0

    def wait(self, now: float) -> float:
        """Seconds until it may happen once more; 0 counts it as having happened."""
        level = max(0.0, self._level - (now - self._at) * self.per_second)
        if level + 1 > self.burst:
            return (level + 1 - self.burst) / self.per_second
        self._level, self._at = level + 1, now
        return 0.0
