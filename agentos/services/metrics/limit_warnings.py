"""Warnings of limits: one when use reaches 80 % of a limit, the next after it was below 70 %, or in the next life."""

from collections.abc import Mapping

from attrs import define, field

from agentos.services.events import ResourceWarning

from .figures import MeasuredAgent

WARNING_SHARE, QUIET_SHARE = 0.8, 0.7  # of a limit


@define(eq=False)
class LimitWarnings:
    """Remembers which warnings were given."""

    _given: set[tuple[int, int, str]] = field(factory=set)  # agent id, life and resource

    def check(self, agent: MeasuredAgent, resource: str, used: float, limit: float) -> ResourceWarning | None:
        """The warning that is due, if one is."""
        key = agent.agent_id, agent.lives, resource
        if used < limit * QUIET_SHARE:
            self._given.discard(key)
        elif used >= limit * WARNING_SHARE and key not in self._given:
            self._given.add(key)
            return ResourceWarning(agent.agent_id, agent.name, resource, used, limit)
        return None

    def forget_others(self, living: Mapping[int, int]) -> None:
        """Forget all lives but these, by agent id."""
        self._given = {(one, life, resource) for one, life, resource in self._given if living.get(one) == life}
