"""Which agent of each program ended last: the next one of it has mostly equal values, and can take over those."""

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from agentos.agents.registry import Agent

MAX_PROGRAMS = 20  # the ones that ended last


@define(eq=False)
class LastOfPrograms:
    """Ended agents by their script or command."""

    _agents: "dict[str | tuple[str, ...], Agent]" = field(factory=dict)  # the one that ended last comes last

    def replace(self, agent: "Agent") -> "Agent | None":
        """Note an agent that has ended; returns the one of its program before it, if that is known."""
        program = agent.spec.script or tuple(agent.spec.command or ())
        before = self._agents.pop(program, None)
        self._agents[program] = agent
        if len(self._agents) > MAX_PROGRAMS:
            del self._agents[next(iter(self._agents))]
        return before
