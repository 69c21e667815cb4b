"""How many restarts a supervisor forgives before it gives up itself."""

from attrs import evolve, frozen


@frozen
class Intensity:
    """At most ``restarts`` within any ``period`` seconds.

    OTP's defaults: 1 restart in 5 s (stdlib, supervisor.erl, "Restart intensity and period").
    """

    restarts: int = 1
    period: float = 5.0
    times: tuple[float, ...] = ()  # of the restarts within the last period, oldest first

    def counting(self, now: float) -> "Intensity":
        """With one more restart, at ``now`` seconds on any clock that does not go back."""
        return evolve(self, times=(*(time for time in self.times if now - time <= self.period), now))

    @property
    def exceeded(self) -> bool:
        """Whether the restart counted last was one too many."""
        return len(self.times) > self.restarts
