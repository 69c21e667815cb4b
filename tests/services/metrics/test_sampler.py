import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import trio
from attrs import define, field

from agentos.services.events import AgentExited, AgentOver, AgentSpawned, Event, ResourceWarning
from agentos.services.metrics.figures import AgentFigures, MeasuredAgent, Reading
from agentos.services.metrics.kernel_figures import LAG_INTERVAL, LoopCounts, LoopLag, read_kernel
from agentos.services.metrics.sampler import MAX_ENDED, AgentSources, Sampler
from agentos_sdk.values import ResourceUsage
from tests.support.wire import PATIENCE

MIB = 1 << 20


@define
class Agents:
    """Agents that exist, what they use, and the events that were published about them."""

    known: dict[int, MeasuredAgent] = field(factory=dict)
    usage: dict[int, ResourceUsage] = field(factory=dict)
    working_set: dict[int, int] = field(factory=dict)
    disk: dict[int, int] = field(factory=dict)
    over: set[int] = field(factory=set)
    asked: list[Collection[int] | None] = field(factory=list)
    published: list[Event] = field(factory=list)

    def add(self, number: int, lives: int = 1, **limits: int) -> None:
        self.known[number] = MeasuredAgent(
            number, f"a{number}", "running", lives, trio.current_time(), runs=True, limits=limits
        )

    def end(self, number: int, **used: Any) -> None:
        old = self.known[number]
        usage = ResourceUsage(**used)
        self.known[number] = MeasuredAgent(number, old.name, "exited", old.lives, old.since, runs=False, used=usage)

    def list_agents(self) -> Sequence[MeasuredAgent]:
        return [agent for number, agent in self.known.items() if number not in self.over]

    async def read(self, wanted: Collection[int] | None) -> Mapping[int, Reading]:
        self.asked.append(None if wanted is None else list(wanted))
        at = time.time()
        return {
            number: Reading(at, self.usage[number])
            for number in (self.known if wanted is None else wanted)
            if self.known[number].runs and number not in self.over
        }

    def sampler(self) -> Sampler:
        sources = AgentSources(
            self.list_agents, self.known.get, self.read, lambda _: self.working_set, lambda _: self.disk
        )
        return Sampler(sources, LoopCounts, self.published.append)


def one(figures: Sequence[AgentFigures]) -> AgentFigures:
    (found,) = figures
    return found


async def test_what_was_never_read_is_unknown() -> None:
    agents = Agents()
    agents.add(1)

    found = one(agents.sampler().live())

    assert (found.name, found.status) == ("a1", "running")
    assert (found.cpu, found.cpu_seconds, found.memory_bytes, found.pids) == (None, None, None, None)
    assert found.total_cpu_seconds is None


async def test_cpu_time_of_earlier_lives_stays_in_the_total_also_what_no_sample_saw() -> None:
    agents = Agents()
    sampler = agents.sampler()
    agents.add(1)
    agents.usage[1] = ResourceUsage(cpu_seconds=2.0)
    await sampler.sample()
    agents.end(1, cpu_seconds=3.0)
    sampler.take_event(AgentExited(1, "a1", "exit status 1"))

    agents.add(1, lives=2)
    agents.usage[1] = ResourceUsage(cpu_seconds=0.5)
    await sampler.sample()

    found = one(sampler.live())
    assert (found.cpu_seconds, found.total_cpu_seconds) == (0.5, 3.5)


async def test_an_agent_that_ended_before_its_first_sample_has_its_last_figures() -> None:
    agents = Agents()
    sampler = agents.sampler()
    agents.add(1)
    agents.end(1, cpu_seconds=0.25, peak=7)
    agents.over.add(1)

    sampler.take_event(AgentExited(1, "a1", "exit status 0"))
    sampler.take_event(AgentOver(1, "a1"))

    found = one(sampler.last_of_ended())
    assert (found.total_cpu_seconds, found.memory_peak_bytes, found.cpu) == (0.25, 7, None)


async def test_the_last_figures_of_the_last_ended_agents_are_kept() -> None:
    agents = Agents()
    sampler = agents.sampler()
    for number in range(MAX_ENDED + 5):
        agents.add(number)
        agents.usage[number] = ResourceUsage(memory=number)
    await sampler.sample()

    for number in range(MAX_ENDED + 5):
        agents.end(number, peak=number)
        agents.over.add(number)
        sampler.take_event(AgentExited(number, f"a{number}", "exit status 0"))
        sampler.take_event(AgentOver(number, f"a{number}"))

    assert sampler.live() == []
    assert [found.memory_peak_bytes for found in sampler.last_of_ended()] == list(range(5, MAX_ENDED + 5))
    await sampler.sample()
    assert sampler.history(7, 900)["at"] == []


async def test_the_kernel_and_the_host_are_read() -> None:
    sampler = Agents().sampler()

    await sampler.sample()
    await sampler.sample()

    kernel, host = sampler.kernel, sampler.host
    assert kernel.memory_bytes is not None
    assert kernel.memory_bytes > MIB
    assert kernel.fds == pytest.approx(len(os.listdir("/proc/self/fd")), abs=5)
    assert kernel.cpu_seconds == pytest.approx(sum(os.times()[:2]), rel=0.05, abs=0.1)
    assert host.cpu_count == os.cpu_count()
    assert host.memory_available_bytes is not None
    assert len(sampler.kernel_history(900)["cpu"]) == 2


async def test_a_caller_that_asks_gets_a_sample_and_the_agent_is_sampled_by_itself_then() -> None:
    agents = Agents()
    for number in (1, 2):
        agents.add(number)
        agents.usage[number] = ResourceUsage(cpu_seconds=0.5)
    sampler = agents.sampler()

    await sampler.refresh([2])

    assert agents.asked == [[2]]
    assert [found.cpu_seconds for found in sampler.live()] == [None, 0.5]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sampler.serve)
        with trio.fail_after(PATIENCE):
            while agents.asked.count([2]) < 3:
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert None in agents.asked


async def test_a_warning_comes_once_per_crossing() -> None:
    agents = Agents()
    agents.add(1, memory=100 * MIB, pids=10)
    sampler = agents.sampler()

    async def use(memory: int, pids: int, in_cache: int = 0) -> list[tuple[str, float, float]]:
        agents.published.clear()
        agents.usage[1] = ResourceUsage(memory=memory * MIB, pids=pids)
        agents.working_set[1] = (memory - in_cache) * MIB
        await sampler.sample()
        assert all(isinstance(event, ResourceWarning) for event in agents.published)
        return [(event.resource, event.used, event.limit) for event in agents.published]  # type: ignore[union-attr]

    assert await use(79, 7) == []
    assert await use(80, 8) == [("memory", 80 * MIB, 100 * MIB), ("pids", 8, 10)]
    assert await use(99, 10) == []
    assert await use(75, 7) == []  # not yet quiet
    assert await use(85, 9) == []
    assert await use(60, 6) == []
    assert await use(85, 6) == [("memory", 85 * MIB, 100 * MIB)]
    assert await use(60, 6) == []
    assert await use(95, 6, in_cache=40) == []  # what is in the cache is freed when needed
    assert await use(90, 6) == [("memory", 90 * MIB, 100 * MIB)]
    assert await use(75, 6, in_cache=35) == []  # quiet
    assert await use(90, 6) == [("memory", 90 * MIB, 100 * MIB)]


async def test_a_life_that_begins_above_the_share_is_warned_of_too() -> None:
    agents = Agents()
    agents.add(1, memory=100 * MIB)
    sampler = agents.sampler()
    agents.usage[1] = ResourceUsage(memory=90 * MIB)
    agents.working_set[1] = 90 * MIB
    await sampler.sample()
    await sampler.sample()
    agents.end(1)
    agents.add(1, lives=2, memory=100 * MIB)

    await sampler.sample()
    await sampler.sample()

    assert agents.published == [ResourceWarning(1, "a1", "memory", 90 * MIB, 100 * MIB)] * 2


async def test_an_agent_that_is_started_again_is_none_of_the_ended() -> None:
    agents = Agents()
    agents.add(1)
    sampler = agents.sampler()
    agents.end(1, peak=5)
    sampler.take_event(AgentOver(1, "a1"))
    agents.add(1, lives=2)
    sampler.take_event(AgentSpawned(1, "a1"))

    found = sampler.find(1)

    assert found is not None
    assert (found.status, found.lives) == ("running", 2)
    assert sampler.last_of_ended() == []


async def test_a_full_workspace_is_warned_of() -> None:
    agents = Agents()
    agents.add(1, disk=10 * MIB)
    agents.usage[1] = ResourceUsage()
    agents.disk[1] = 9 * MIB
    sampler = agents.sampler()

    await sampler.sample()
    assert agents.published == []
    await sampler.sample(with_disk=True)
    await sampler.sample(with_disk=True)

    assert agents.published == [ResourceWarning(1, "a1", "disk", 9 * MIB, 10 * MIB)]


async def test_the_lag_of_a_held_up_loop_is_measured() -> None:
    lag, began = LoopLag(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.serve)
        await trio.testing.wait_all_tasks_blocked()
        held_up = trio.current_time()
        time.sleep(0.6)  # noqa: ASYNC251 - holds up the loop
        let_go = trio.current_time()
        while lag.longest is None:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()

    longest = lag.take()
    assert longest is not None
    assert let_go - held_up <= longest + LAG_INTERVAL <= trio.current_time() - began
    assert lag.take() is None


def test_where_no_time_has_passed_the_kernels_cpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 5.0)
    before = read_kernel(None, None, LoopCounts())

    assert read_kernel(before, None, LoopCounts()).cpu is None
