"""Schedule of samples: all agents every 5 seconds, those that a caller watches every second. Pure."""

from collections.abc import Collection

from attrs import define, field

INTERVAL = 5.0  # seconds between two samples of all agents, and of the kernel
WATCHED_INTERVAL = 1.0  # seconds between two samples of agents that a caller watches
WATCHED_SECONDS = 10.0  # for which a caller that has asked about an agent watches it


@define(eq=False)
class Schedule:
    """Times are on any monotonic clock, in seconds."""

    _next_round: float = float("-inf")
    _watched: dict[int, float] = field(factory=dict)  # by agent id: until when

    def watch(self, agents: Collection[int], now: float) -> None:
        """Note that a caller has asked about these agents."""
        self._watched |= dict.fromkeys(agents, now + WATCHED_SECONDS)

    def take_due(self, now: float) -> Collection[int] | None:
        """The agents to be sampled now; None: all, and the kernel."""
        self._watched = {agent: until for agent, until in self._watched.items() if until > now}
        if now < self._next_round:
            return tuple(self._watched)
        self._next_round = now + INTERVAL
        return None

    def next_look(self, now: float) -> float:
        """The time of the next :meth:`take_due`: each second, as an agent may be watched at any time."""
        return min(now + WATCHED_INTERVAL, max(now, self._next_round))
