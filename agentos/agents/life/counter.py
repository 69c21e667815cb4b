"""Counts the CPU time and the peak memory of agents' lives into the usage by day."""

import trio
from attrs import define, field

from agentos.agents.jail.usage import UsageReader
from agentos.agents.registry import Agent, Registry
from agentos.services.events import AgentExited
from agentos.services.usage import WRITE_INTERVAL, UsageLog
from agentos_sdk.values import ResourceUsage


@define(eq=False)
class LifeCounter:
    """One per kernel. CPU time is added while a life runs, and the rest of it at its end."""

    registry: Registry
    reader: UsageReader
    log: UsageLog
    _counted: dict[int, ResourceUsage] = field(factory=dict)  # by agent id: of the present life, added already

    def count_end(self, event: AgentExited) -> None:
        """Add what a life has used since it was last read."""
        agent = self.registry.get(event.agent_id)
        if agent is not None:
            self._count(agent, agent.life.used or ResourceUsage())
            self._counted.pop(agent.id, None)

    def _count(self, agent: Agent, used: ResourceUsage) -> None:
        before = self._counted.get(agent.id, ResourceUsage())
        more = (used.cpu_seconds or 0.0) - (before.cpu_seconds or 0.0)
        grown = used.peak is not None and used.peak > (before.peak or 0)
        if more > 0 or grown:
            self._counted[agent.id] = used
            self.log.add_life_use(agent.queue_path[-1].name, max(0.0, more), used.peak if grown else None)

    async def count_running(self) -> None:
        """Add what the running agents have used."""
        usage = await self.reader.read()
        for agent in self.registry:
            if agent.life.jail is not None and agent.id in usage:
                self._count(agent, usage[agent.id])

    async def serve(self) -> None:
        """Count and write until cancelled; then queue the last amounts."""
        try:
            while True:
                await trio.sleep(WRITE_INTERVAL)
                await self.count_running()
                await self.log.write()
        finally:
            self.log.write_later()
