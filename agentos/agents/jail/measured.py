"""Agents and readings of running ones for the sampler of metrics. Functions that read files block."""

import contextlib
import os
import time
from collections.abc import Collection, Mapping, Sequence

from attrs import define
from msgspec import Struct

from agentos.agents.registry import Agent, Registry
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.watch import processes
from agentos.sandbox.watch.disk import DiskWatcher
from agentos.services.metrics import cgroup, proc
from agentos.services.metrics.figures import MeasuredAgent, Reading

from .jail import Jail
from .root_access import Ended, directory_of
from .usage import list_processes, read_group


class LifeFigures(Struct, frozen=True):
    """Figures of a life's own processes, and its cgroup's counts; None without a cgroup."""

    processes: proc.ProcessFigures
    counted: Reading | None


@define(eq=False)
class MeasuredAgents:
    """The agents of one kernel; ``disk`` knows the sizes of workspaces without a file system of their own."""

    registry: Registry
    disk: DiskWatcher

    def list_agents(self) -> Sequence[MeasuredAgent]:
        """The agents that haven't ended for good."""
        return [describe(agent) for agent in self.registry if not agent.over.is_set()]

    def find_agent(self, number: int) -> MeasuredAgent | None:
        """A present or recent agent."""
        agent = self.registry.get(number)
        return describe(agent) if agent is not None else None

    def read_working_set(self, wanted: Collection[int]) -> Mapping[int, int]:
        """Bytes of memory that can't be freed. Without a cgroup PSS, as the memory limit is enforced by it."""
        found: dict[int, int] = {}
        for number, jail in self._find_jails(wanted).items():
            if jail.group is not None:
                with contextlib.suppress(CgroupError):  # it is being removed
                    held = cgroup.read_working_set(jail.group)
                    found |= {number: held} if held is not None else {}
            else:
                living = processes.distinct_memory(list_processes(jail))
                counted = sum(map(processes.read_memory, living), processes.Memory())
                found[number] = counted.own + counted.shared
        return found

    def read_disk(self, wanted: Collection[int]) -> Mapping[int, int]:
        """Bytes of files in workspaces."""
        found: dict[int, int] = {}
        for number, jail in self._find_jails(wanted).items():
            workspace = jail.parts.workspace
            if workspace is None:
                continue
            if workspace.watched is not None:
                found |= {number: self.disk.sizes[number]} if number in self.disk.sizes else {}
                continue
            with contextlib.suppress(Ended, OSError), directory_of(jail.sandbox, "workspace") as directory:
                full = os.fstatvfs(directory)
                found[number] = (full.f_blocks - full.f_bfree) * full.f_frsize
        return found

    def _find_jails(self, wanted: Collection[int]) -> dict[int, Jail]:
        agents = map(self.registry.get, wanted)
        return {agent.id: agent.life.jail for agent in agents if agent is not None and agent.life.jail is not None}


def describe(agent: Agent) -> MeasuredAgent:
    jail = agent.life.jail
    return MeasuredAgent(
        agent_id=agent.id,
        name=agent.name,
        status=str(agent.state),
        lives=agent.lives,
        since=agent.life.since,
        runs=jail is not None,
        limits=limits_in_force(agent, jail) if jail is not None else {},
        used=agent.life.used,
    )


def limits_in_force(agent: Agent, jail: Jail) -> dict[str, int]:
    """Its limits as the sampler needs them, without those that this host can't enforce."""
    found = jail.limits if agent.spec.jailed else agent.spec.limits
    named = {"memory": found.memory, "pids": found.max_pids, "disk": found.disk}
    active = {name for name, layer in agent.life.layers.items() if layer.active}
    return {name: int(limit) for name, limit in named.items() if limit is not None and name in active}


def read_lives(jails: Mapping[int, Jail], with_pss: bool) -> Mapping[int, LifeFigures]:
    """Read present figures of lives, without the sandbox's PID 1."""
    scanned = {number: jail for number, jail in jails.items() if jail.group is None}
    roots = {number: processes.root_start_times(jail.sandbox.pid) for number, jail in scanned.items()}
    living = processes.ProcessCache().list_by_group(roots) if scanned else {}
    found = {}
    for number, jail in jails.items():
        if jail.group is not None:
            pids = set(cgroup.list_own_processes(jail.group))
        else:
            pids = {process.pid for process in living[number]}
        if jail.sandbox.pid != jail.sandbox.program:
            pids.discard(jail.sandbox.pid)
        counted = Reading(time.time(), read_group(jail)) if jail.group is not None else None
        found[number] = LifeFigures(proc.read_processes(pids - {0}, with_pss), counted)
    return found
