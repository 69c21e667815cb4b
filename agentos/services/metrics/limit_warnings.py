"""Warnings of limits: one when use reaches 80 % of a limit, the next after it was below 70 %."""

from collections.abc import Collection

from attrs import define, field

from agentos.services.events import ResourceWarning

WARNING_SHARE, QUIET_SHARE = 0.8, 0.7  # of a limit


@define(eq=False)
class LimitWarnings:
    """Remembers which warnings were given."""

    _given: set[tuple[int, str]] = field(factory=set)  # agent id and resource

    def check(self, agent_id: int, name: str, resource: str, used: float, limit: float) -> ResourceWarning | None:
        """The warning that is due, if one is."""
        key = agent_id, resource
        if used < limit * QUIET_SHARE:
            self._given.discard(key)
        elif used >= limit * WARNING_SHARE and key not in self._given:
            self._given.add(key)
            return ResourceWarning(agent_id, name, resource, used, limit)
        return None

    def forget_others(self, living: Collection[int]) -> None:
        """Forget agents that have ended for good."""
        self._given = {key for key in self._given if key[0] in living}
