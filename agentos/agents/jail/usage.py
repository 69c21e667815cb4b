"""Memory and CPU time of agents: from their cgroups, else from /proc; of ended ones as Linux counted at their end."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence

import trio
from attrs import define, evolve, field

from agentos.agents.registry import Agent, Registry
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.errors import EXHAUSTED
from agentos.sandbox.watch import processes
from agentos.services.metrics.figures import Reading
from agentos_sdk.values import ResourceUsage

from .jail import Jail

log = logging.getLogger(__name__)

MAX_AGE = 0.9  # seconds; LIST is answered from the last readings until they are older. A poll per second gets new ones
NOT_RUN = "it hasn't run yet"
SOURCE_RSS = "/proc, RSS; without what it spawned and what runs beside it"
NO_CGROUP = "no cgroup is delegated, so its peak is not counted while it runs"


def read_usage(agent: Agent) -> ResourceUsage:
    """Present resource usage, or that of the last life. Blocks: it reads files."""
    jail = agent.life.jail
    if jail is None:
        return agent.life.used or ResourceUsage(reason="nothing has counted" if agent.lives else NOT_RUN)
    if jail.group is not None:
        return read_group(jail)
    living = list_processes(jail)
    held = sum(map(processes.read_memory, processes.distinct_memory(living)), processes.Memory())
    seconds, threads = processes.count_time_and_threads(living)
    return ResourceUsage(
        memory=held.own + held.shared,
        pids=subtract_own(jail, threads),
        cpu_seconds=seconds,
        source=f"/proc, {'PSS' if held.exact else 'RSS'}; without what it spawned and what runs beside it",
        reason=NO_CGROUP,
    )


def list_processes(jail: Jail) -> Sequence[processes.Process]:
    """The processes of a jail without a cgroup, its PID 1 included. Blocks."""
    return processes.ProcessCache().list_by_group({0: processes.root_start_times(jail.sandbox.pid)})[0]


def read_group(jail: Jail) -> ResourceUsage:
    """The counters of a life's cgroup. Blocks."""
    assert jail.group is not None, "only a life with a cgroup is read by it"
    try:
        used = jail.group.usage()
    except CgroupError as error:  # its cgroup is being removed
        return ResourceUsage(reason=str(error))
    return evolve(used, pids=subtract_own(jail, used.pids))


def subtract_own(jail: Jail, counted: int | None) -> int | None:
    """Of counted processes, or their limit, what is the program's: ``max_pids`` is of these alone."""
    return max(0, counted - jail.own_processes) if counted is not None else None


def complete_usage(jail: Jail) -> ResourceUsage | None:
    """The usage of a life that has ended: its cgroup's counters; what no cgroup counted is from wait4.

    That has less than was read before if PID 1 was killed: Linux then drops the CPU time of what ran below it.
    """
    counted, at_end = jail.usage, jail.sandbox.rusage
    used = evolve(counted, memory=None, pids=None) if counted is not None else ResourceUsage()
    sources = ["its cgroup, in its last life"] if used.peak is not None or used.cpu_seconds is not None else []
    if at_end is not None and used.cpu_seconds is None:
        used = evolve(used, cpu_seconds=max(at_end.cpu_seconds, jail.cpu_seconds))
        sources.append("CPU time by wait4 or as last read, in its last life")
    if at_end is not None and used.peak is None:
        if jail.highest > (at_end.peak or 0):
            used = evolve(used, peak=jail.highest)
            sources.append("the peak is the most that was seen of all its processes")
        else:
            used = evolve(used, peak=at_end.peak)
            sources.append("the peak is that of its largest process")
    return evolve(used, source="; ".join(sources)) if sources else None


@define(eq=False)
class UsageReader:
    """What all agents use. A reading is shared by all that ask while it is new enough; one thread reads at a time."""

    registry: Registry
    _readings: dict[Jail, Reading] = field(factory=dict)
    _reading: trio.Lock = field(factory=trio.Lock)
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))
    _cache: processes.ProcessCache = field(factory=processes.ProcessCache)

    async def read(self) -> Mapping[int, ResourceUsage]:
        """By the id of each agent that runs or has run: its usage, at most :data:`MAX_AGE` old."""
        readings, unknown = await self.read_running(None), ResourceUsage()
        return {
            agent.id: readings[agent.id].usage if agent.id in readings else agent.life.used or unknown
            for agent in self.registry
        }

    async def read_running(self, wanted: Collection[int] | None) -> Mapping[int, Reading]:
        """Readings of running agents, of all or of those with ``wanted`` ids, at most :data:`MAX_AGE` old."""
        async with self._reading:
            jails = {agent.id: agent.life.jail for agent in self.registry if agent.life.jail is not None}
            asked = jails if wanted is None else {number: jails[number] for number in wanted if number in jails}
            now = time.time()
            kept = {jail: self._readings[jail] for jail in jails.values() if jail in self._readings}
            missing = {jail for jail in asked.values() if jail not in kept or abs(now - kept[jail].at) > MAX_AGE}
            if missing:
                try:
                    kept |= await trio.to_thread.run_sync(
                        self._read_all, missing, list(jails.values()), limiter=self._limiter
                    )
                except EXHAUSTED as error:
                    log.warning("what agents use could not be measured: %s", error)
                    kept |= dict.fromkeys(missing, Reading(time.time(), ResourceUsage()))
            self._readings = kept
        return {number: kept[jail] for number, jail in asked.items()}

    def _read_all(self, wanted: Collection[Jail], jails: Sequence[Jail]) -> dict[Jail, Reading]:
        found = {jail: Reading(time.time(), read_group(jail)) for jail in wanted if jail.group is not None}
        # The cache of processes is of use only if it is asked about all lives each time.
        watched = {number: jail for number, jail in enumerate(jails) if jail.group is None}
        if found.keys() == wanted:
            return found
        living = self._cache.list_by_group(
            {number: processes.root_start_times(jail.sandbox.pid) for number, jail in watched.items()}
        )
        for number, jail in watched.items():
            if jail not in wanted:
                continue
            # RSS: PSS takes half a millisecond for each process. The sandbox's PID 1 shares its memory with the zygote.
            own = [process for process in living[number] if process.pid != jail.sandbox.pid] or living[number]
            memory = sum(process.rss for process in processes.distinct_memory(own)) if own else None
            jail.highest = max(jail.highest, memory or 0)
            seconds, threads = processes.count_time_and_threads(living[number])
            jail.cpu_seconds = max(jail.cpu_seconds, seconds or 0.0)
            pids = subtract_own(jail, threads)
            usage = ResourceUsage(memory=memory, pids=pids, cpu_seconds=seconds, source=SOURCE_RSS, reason=NO_CGROUP)
            found[jail] = Reading(time.time(), usage)
        return found
