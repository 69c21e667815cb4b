import os
from collections.abc import Mapping, Sequence

import pytest
import trio
from attrs import define, field

from agentos.services.events import AgentOver
from agentos.services.metrics.figures import AgentFigures, MeasuredAgent
from agentos.services.metrics.kernel_figures import LoopCounts
from agentos.services.metrics.sampler import MAX_ENDED, Sampler
from agentos_sdk.values import ResourceUsage


@define
class Agents:
    """Agents that exist, and what they use."""

    known: dict[int, MeasuredAgent] = field(factory=dict)
    usage: dict[int, ResourceUsage] = field(factory=dict)
    over: set[int] = field(factory=set)

    def add(self, number: int, lives: int = 1) -> None:
        self.known[number] = MeasuredAgent(number, f"a{number}", "running", lives, trio.current_time(), runs=True)

    def list_agents(self) -> Sequence[MeasuredAgent]:
        return [agent for number, agent in self.known.items() if number not in self.over]

    async def read(self) -> Mapping[int, ResourceUsage]:
        return self.usage

    def sampler(self) -> Sampler:
        return Sampler(self.list_agents, self.known.get, self.read, LoopCounts)


def one(figures: Sequence[AgentFigures]) -> AgentFigures:
    (found,) = figures
    return found


async def test_what_was_never_read_is_unknown() -> None:
    agents = Agents()
    agents.add(1)

    found = one(agents.sampler().live())

    assert (found.name, found.status) == ("a1", "running")
    assert (found.cpu, found.cpu_seconds, found.memory_bytes, found.pids) == (None, None, None, None)


async def test_cpu_time_of_earlier_lives_stays_in_the_total() -> None:
    agents = Agents()
    sampler = agents.sampler()
    for lives, seconds in ((1, 2.0), (1, 3.0), (2, 0.5)):
        agents.add(1, lives)
        agents.usage[1] = ResourceUsage(cpu_seconds=seconds)
        await sampler.sample()

    found = one(sampler.live())
    assert (found.cpu_seconds, found.total_cpu_seconds) == (0.5, 3.5)


async def test_the_last_figures_of_the_last_ended_agents_are_kept() -> None:
    agents = Agents()
    sampler = agents.sampler()
    for number in range(MAX_ENDED + 5):
        agents.add(number)
        agents.usage[number] = ResourceUsage(memory=number)
    await sampler.sample()

    for number in range(MAX_ENDED + 5):
        agents.over.add(number)
        sampler.take_event(AgentOver(number, f"a{number}"))

    assert sampler.live() == []
    assert [found.memory_bytes for found in sampler.last_of_ended()] == list(range(5, MAX_ENDED + 5))


async def test_the_kernel_s_own_figures_are_read() -> None:
    sampler = Agents().sampler()

    await sampler.sample()

    kernel = sampler.kernel()
    assert kernel.memory_bytes is not None
    assert kernel.memory_bytes > 1 << 20
    assert kernel.fds is not None
    assert kernel.cpu_seconds == pytest.approx(sum(os.times()[:2]), rel=0.5)
