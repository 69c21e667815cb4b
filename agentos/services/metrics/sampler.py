"""Samples CPU time, memory and processes of agents and the kernel, in rounds of one call of a thread each.

All agents are sampled every 5 seconds, those that a caller watches every second. Figures that take longer to read are
read when a call asks for them.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Literal

import trio
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.sandbox.errors import EXHAUSTED
from agentos.services.events import AgentExited, AgentOver, AgentSpawned, Event, Publish
from agentos.threads import run_in_thread
from agentos_sdk.values import ResourceUsage

from .figures import AgentFigures, HostFigures, KernelFigures, MeasuredAgent, Reading
from .history import KEPT_SECONDS, History
from .kernel_figures import LoopCounts, LoopLag, read_kernel
from .limit_warnings import QUIET_SHARE, LimitWarnings
from .proc import read_host
from .schedule import Schedule

log = logging.getLogger(__name__)

DISK_ROUNDS = 3  # between two readings of the sizes of workspaces
MAX_ENDED = 100  # ended agents with last figures
AGENT_COLUMNS: Final[Mapping[str, Literal["d", "f"]]] = {"cpu": "f", "memory_bytes": "d", "pids": "f"}
KERNEL_COLUMNS: Final[Mapping[str, Literal["d", "f"]]] = {
    "cpu": "f",
    "memory_bytes": "d",
    "kernel_cpu": "f",
    "kernel_memory_bytes": "d",
    "loop_lag_seconds": "f",
    "connections": "f",
    "llm_waiting": "f",
}

Amounts = Callable[[Collection[int]], Mapping[int, int]]
"""Reads an amount for agents, by id; those for which it is unknown are left out. Blocks."""


class AgentSources(Struct, frozen=True):
    """Functions that give the sampler its figures of agents.

    ``list_agents`` lists those that haven't ended for good; ``find_agent`` also finds recent ones. ``read_usage`` reads
    the usage of running agents: all, or those with these ids. ``read_working_set`` reads bytes of memory that can't be
    freed, ``read_disk`` bytes of files in workspaces.
    """

    list_agents: Callable[[], Sequence[MeasuredAgent]]
    find_agent: Callable[[int], MeasuredAgent | None]
    read_usage: Callable[[Collection[int] | None], Awaitable[Mapping[int, Reading]]]
    read_working_set: Amounts
    read_disk: Amounts


@define(eq=False)
class Sampler:
    """One per kernel. ``count`` counts connections and queues; ``disk`` is a directory on the kernel's disk.

    ``kernel`` and ``host`` are the last figures of both.
    """

    sources: AgentSources
    count: Callable[[], LoopCounts]
    publish: Publish
    disk: str = "/"
    kernel: KernelFigures = field(init=False, factory=lambda: KernelFigures(time.time()))
    host: HostFigures = field(init=False, factory=HostFigures)
    _last: dict[int, AgentFigures] = field(factory=dict)  # by agent id
    _histories: dict[int, History] = field(factory=dict)
    _schedule: Schedule = field(factory=Schedule)
    _ended: OrderedDict[int, AgentFigures] = field(factory=OrderedDict)
    _kernel_history: History = field(factory=lambda: History(KERNEL_COLUMNS))
    _lag: LoopLag = field(factory=LoopLag)
    _warnings: LimitWarnings = field(factory=LimitWarnings)
    _sampling: trio.Lock = field(factory=trio.Lock)

    def live(self) -> list[AgentFigures]:
        """The last figures of all agents that haven't ended for good."""
        return [self._figures(agent) for agent in self.sources.list_agents()]

    def last_of_ended(self) -> list[AgentFigures]:
        """The last figures of the agents that ended last, in the order of their ends."""
        return list(self._ended.values())

    def find(self, agent_id: int) -> AgentFigures | None:
        """The last figures of an agent, also of one of those that ended last."""
        agent = self.sources.find_agent(agent_id)
        if agent_id in self._ended:
            return self._ended[agent_id]
        return self._figures(agent) if agent is not None else None

    def _figures(self, agent: MeasuredAgent) -> AgentFigures:
        last = self._last.get(agent.agent_id)
        if last is not None and agent.runs and last.lives == agent.lives:
            return replace(last, status=agent.status)
        used = agent.used if not agent.runs and agent.used is not None else ResourceUsage()
        return measure(agent, Reading(time.time(), used), last)

    def history(self, agent_id: int, seconds: float) -> dict[str, list[float | None]]:
        """The samples of the last seconds of an agent, column by column; empty columns if there are none."""
        found = self._histories.get(agent_id) or History(AGENT_COLUMNS)
        return found.since(time.time() - min(seconds, KEPT_SECONDS))

    def kernel_history(self, seconds: float) -> dict[str, list[float | None]]:
        """The samples of the host and the kernel."""
        return self._kernel_history.since(time.time() - min(seconds, KEPT_SECONDS))

    def take_event(self, event: Event) -> None:
        """Keep the total of an ended life, and the last figures of an agent that has ended for good."""
        if isinstance(event, AgentSpawned):
            self._ended.pop(event.agent_id, None)  # START has begun it again
        if not isinstance(event, AgentExited | AgentOver):
            return
        agent = self.sources.find_agent(event.agent_id)
        if agent is None:
            return
        if isinstance(event, AgentExited):
            self._last[event.agent_id] = self._figures(agent)
        else:
            self._ended[event.agent_id] = self._figures(agent)
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    async def refresh(self, wanted: Collection[int]) -> None:
        """Watch these agents from now on, and sample those without a current sample."""
        self._schedule.watch(wanted, trio.current_time())
        await self._sample_agents(wanted)

    async def serve(self) -> None:
        """Sample until cancelled."""
        rounds = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lag.serve)
            while True:
                began = trio.current_time()
                due = self._schedule.take_due(began)
                if due is None:
                    await self.sample(with_disk=rounds % DISK_ROUNDS == 0)
                    rounds += 1
                elif due:
                    await self._sample_agents(due)
                await trio.sleep_until(self._schedule.next_look(began))

    async def sample(self, with_disk: bool = False) -> None:
        """Take a sample of the kernel, the host and all agents, and warn of limits that are near."""
        await self._sample_kernel()
        agents = await self._sample_agents(None)
        living = {agent.agent_id: agent.lives for agent in agents}
        for kept in (self._last, self._histories):
            for number in kept.keys() - living.keys():
                del kept[number]
        self._warnings.forget_others(living)
        await self._warn(agents, with_disk)

    async def _sample_kernel(self) -> None:
        before, counts = self.kernel, self.count()
        lag, host_before = self._lag.take(), self.host

        def read() -> tuple[KernelFigures, HostFigures]:
            kernel = read_kernel(before, lag, counts)
            return kernel, read_host(self.disk, host_before, kernel.at - before.at)

        try:
            self.kernel, self.host = await run_in_thread(read)
        except EXHAUSTED as error:
            log.warning("what the kernel uses could not be measured: %s", error)
            return
        kernel, host, used = self.kernel, self.host, None
        if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
            used = host.memory_total_bytes - host.memory_available_bytes
        of_kernel = (kernel.cpu, kernel.memory_bytes, kernel.loop_lag_seconds, kernel.connections)
        self._kernel_history.add(kernel.at, (host.cpu, used, *of_kernel, counts.waiting.get("model")))

    async def _sample_agents(self, wanted: Collection[int] | None) -> Sequence[MeasuredAgent]:
        """Sample all agents, or those with these ids, except those with a current sample; returns the agents."""
        async with self._sampling:
            readings = await self.sources.read_usage(wanted)
            agents = self.sources.list_agents() if wanted is None else self._find(wanted)
            began = time.time() - trio.current_time()  # of Trio's clock
            for agent in agents:
                reading, before = readings.get(agent.agent_id), self._last.get(agent.agent_id)
                if reading is None or not agent.runs or reading.at < began + agent.since:
                    continue  # its life has ended, or begun, meanwhile
                if before is not None and (before.lives, before.at) == (agent.lives, reading.at):
                    continue  # the reading was sampled already
                self._last[agent.agent_id] = figures = measure(agent, reading, before)
                history = self._histories.get(agent.agent_id)
                if history is None:
                    history = self._histories[agent.agent_id] = History(AGENT_COLUMNS)
                history.add(figures.at, (figures.cpu, figures.memory_bytes, figures.pids))
        return agents

    def _find(self, wanted: Collection[int]) -> Sequence[MeasuredAgent]:
        return [agent for agent in map(self.sources.find_agent, wanted) if agent is not None]

    async def _warn(self, agents: Sequence[MeasuredAgent], with_disk: bool) -> None:
        """Publish warnings. Memory that isn't far from its limit is measured again: files in the cache don't count."""
        amounts: dict[str, Mapping[int, int]] = {"pids": {}, "memory": {}, "disk": {}}
        amounts["pids"] = {one: figures.pids for one, figures in self._last.items() if figures.pids is not None}
        held = {one: figures.memory_bytes for one, figures in self._last.items() if figures.memory_bytes is not None}
        near = [
            agent.agent_id
            for agent in agents
            if held.get(agent.agent_id, 0) >= agent.limits.get("memory", float("inf")) * QUIET_SHARE
        ]
        try:
            amounts["memory"] = {**held, **(await run_in_thread(self.sources.read_working_set, near) if near else {})}
            if with_disk:
                with_limit = [agent.agent_id for agent in agents if agent.runs and "disk" in agent.limits]
                amounts["disk"] = await run_in_thread(self.sources.read_disk, with_limit)
        except EXHAUSTED as error:
            log.warning("limits of agents could not be checked: %s", error)
        check = self._warnings.check
        for agent in agents:
            for resource, limit in agent.limits.items() if agent.runs else ():
                used = amounts[resource].get(agent.agent_id)
                if used is None:
                    continue
                warning = check(agent, resource, used, limit)
                if warning is not None:
                    self.publish(warning)


def measure(agent: MeasuredAgent, reading: Reading, before: AgentFigures | None) -> AgentFigures:
    """The figures of an agent from a reading, and those of the sample before."""
    used, same_life = reading.usage, before is not None and before.lives == agent.lives
    past, seconds = 0.0, trio.current_time() - agent.since
    if before is not None and same_life:
        past, seconds = before.cpu_seconds or 0.0, reading.at - before.at
    more = max(0.0, used.cpu_seconds - past) if used.cpu_seconds is not None else None
    total = before.total_cpu_seconds if before is not None else None
    return AgentFigures(
        agent_id=agent.agent_id,
        name=agent.name,
        status=agent.status,
        lives=agent.lives,
        at=reading.at,
        source=used.source,
        reason=used.reason,
        cpu=more / seconds if agent.runs and more is not None and seconds > 0 else None,
        cpu_seconds=used.cpu_seconds,
        total_cpu_seconds=total if more is None else (total or 0.0) + more,
        memory_bytes=used.memory,
        memory_peak_bytes=used.peak,
        memory_limit_bytes=agent.limits.get("memory"),
        pids=used.pids,
        pids_limit=agent.limits.get("pids"),
    )
