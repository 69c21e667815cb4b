"""Samples what agents and the kernel use, in rounds; all files of a round are read in one call of a thread."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from attrs import define, field
from msgspec.structs import replace

from agentos.services.events import AgentOver, Event
from agentos.threads import run_in_thread
from agentos_sdk.values import ResourceUsage

from .figures import AgentFigures, KernelFigures, MeasuredAgent
from .kernel_figures import LoopCounts, LoopLag, read_kernel

INTERVAL = 5.0  # seconds between two samples of an agent
MAX_ENDED = 100  # ended agents whose last figures are kept


@define(eq=False)
class Sampler:
    """One per kernel. ``list_agents`` are those that haven't ended for good; ``find_agent`` knows recent ones, too.

    ``read_usage`` reads what all of them use, by agent id; ``count`` the kernel's connections and queues.
    """

    list_agents: Callable[[], Sequence[MeasuredAgent]]
    find_agent: Callable[[int], MeasuredAgent | None]
    read_usage: Callable[[], Awaitable[Mapping[int, ResourceUsage]]]
    count: Callable[[], LoopCounts]
    _last: dict[int, AgentFigures] = field(factory=dict)  # by agent id
    _ended: OrderedDict[int, AgentFigures] = field(factory=OrderedDict)
    _kernel: KernelFigures = field(factory=lambda: KernelFigures(time.time()))
    _lag: LoopLag = field(factory=LoopLag)

    def live(self) -> list[AgentFigures]:
        """The last figures of all agents that haven't ended for good."""
        return [
            replace(self._last[one.agent_id], status=one.status) if one.agent_id in self._last else begin(one)
            for one in self.list_agents()
        ]

    def last_of_ended(self) -> list[AgentFigures]:
        """The last figures of the agents that ended last, the latest last."""
        return list(self._ended.values())

    def kernel(self) -> KernelFigures:
        """The last figures of the kernel itself."""
        return self._kernel

    def take_event(self, event: Event) -> None:
        """Keep the last figures of an agent that has ended for good."""
        if not isinstance(event, AgentOver):
            return
        agent = self.find_agent(event.agent_id)
        last = self._last.pop(event.agent_id, None) or (begin(agent) if agent is not None else None)
        if agent is not None and last is not None:
            self._ended[event.agent_id] = replace(last, status=agent.status)
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    async def serve(self) -> None:
        """Sample until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lag.serve)
            while True:
                await self.sample()
                await trio.sleep(INTERVAL)

    async def sample(self) -> None:
        """Take a sample of all agents and of the kernel."""
        self._kernel = await run_in_thread(read_kernel, self._kernel, self._lag.take(), self.count())
        usage, at = await self.read_usage(), time.time()
        for one in self.list_agents():
            used = usage.get(one.agent_id)
            if used is not None:
                self._ended.pop(one.agent_id, None)
                self._last[one.agent_id] = measure(one, used, at, self._last.get(one.agent_id))


def begin(agent: MeasuredAgent) -> AgentFigures:
    """The figures of an agent before its first sample."""
    return AgentFigures(agent.agent_id, agent.name, agent.status, agent.lives, time.time())


def measure(agent: MeasuredAgent, used: ResourceUsage, at: float, before: AgentFigures | None) -> AgentFigures:
    """The figures of an agent from what it uses, and those of the sample before."""
    same_life = before is not None and before.lives == agent.lives
    past = before.cpu_seconds if before is not None and same_life else 0.0
    seconds = at - before.at if before is not None and same_life else trio.current_time() - agent.since
    more = used.cpu_seconds - past if used.cpu_seconds is not None and past is not None else None
    total = before.total_cpu_seconds if before is not None else 0.0
    return AgentFigures(
        agent_id=agent.agent_id,
        name=agent.name,
        status=agent.status,
        lives=agent.lives,
        at=at,
        source=used.source,
        reason=used.reason,
        cpu=max(0.0, more) / seconds if agent.runs and more is not None and seconds > 0 else None,
        cpu_seconds=used.cpu_seconds,
        total_cpu_seconds=total + max(0.0, more) if more is not None and total is not None else total,
        memory_bytes=used.memory,
        memory_peak_bytes=used.peak,
        memory_limit_bytes=agent.memory_limit,
        pids=used.pids,
        pids_limit=agent.pids_limit,
    )
