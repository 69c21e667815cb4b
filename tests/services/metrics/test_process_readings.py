"""The earlier readings of processes that METRICS_AGENT and METRICS_ALL_AGENTS compare with."""

from types import SimpleNamespace
from typing import Any, cast

import trio
from attrs import define, field

from agentos.services.metrics.proc import ProcessFigures
from agentos.syscalls.operator.metrics import BATCH, MetricsCalls

AGENTS = 500


@define
class Life:
    since: float = 0.0
    jail: None = None


@define(eq=False)
class Agent:
    id: int
    lives: int = 1
    life: Life = field(factory=Life)
    over: trio.Event = field(factory=trio.Event)


@define
class Registry:
    agents: dict[int, Agent]
    lookups: int = 0

    def get(self, number: int) -> Agent | None:
        self.lookups += 1
        return self.agents.get(number)

    def is_over(self, number: int) -> bool:
        found = self.get(number)
        return found is not None and found.over.is_set()


class Line:
    def queue_states(self) -> dict[tuple[str, ...], object]:
        return {}


def describe_all(handlers: MetricsCalls, agents: list[Agent], seconds: float) -> list[float | None]:
    now = ProcessFigures(seconds, cpu_seconds=seconds / 2)
    return [handlers.describe_processes(cast(Any, agent), now).cpu for agent in agents]


async def test_the_readings_of_ended_agents_are_looked_for_once_per_batch_and_forgotten() -> None:
    agents = [Agent(number) for number in range(AGENTS)]
    registry = Registry({agent.id: agent for agent in agents})
    handlers = MetricsCalls(cast(Any, SimpleNamespace(registry=registry, line=Line())), cast(Any, None))
    describe_all(handlers, agents, 1e9)
    registry.lookups = 0

    for _ in range(AGENTS // BATCH):
        await handlers.measure([], with_pss=False)
    shares = describe_all(handlers, agents, 1e9 + 10)

    assert registry.lookups == AGENTS * AGENTS // BATCH
    assert shares == [0.5] * AGENTS
    agents[0].over.set()
    del registry.agents[1]
    await handlers.measure([], with_pss=False)
    assert handlers._processes.keys() == set(range(2, AGENTS))
