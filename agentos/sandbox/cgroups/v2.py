"""cgroup v2: create, limit, freeze, kill and measure groups. One hierarchy, in which only leaves hold processes.

A cgroup with controllers enabled for its children may hold no process of its own ("no internal processes"). So every
group is a directory with the limits, and in it a leaf ``self`` for its processes, beside the groups of the agents that
they spawn::

    agent-7/          memory.max, pids.max, cpu.max: limit all groups below
        self/         the processes of agent 7
        agent-9/      a child of agent 7: its own limits, within those of agent 7
            self/
"""

import os
import time

from msgspec import Struct
from msgspec.structs import replace

from agentos_sdk.values import ResourceUsage

from . import files
from .values import (
    MAX_PIDS,
    CgroupEntry,
    CgroupError,
    EnforcedLimits,
    Evidence,
    Limits,
    cpu_quota,
    throttled_share,
    validate_name,
)


class Group(Struct, frozen=True):
    """A cgroup that we created: ``directory`` is its path, ``controllers`` are those enabled in it.

    ``enforced`` are the limits that it got first, at its creation or by :meth:`limit`, as read back then.
    """

    directory: str
    controllers: frozenset[str]
    enforced: EnforcedLimits = EnforcedLimits()

    version = 2

    @property
    def paths(self) -> tuple[str, ...]:
        """Its directories: one, as there is one hierarchy."""
        return (self.directory,)

    @property
    def leaf(self) -> str:
        """The directory of its own processes."""
        return f"{self.directory}/self"

    def create_child(self, name: str, limits: Limits) -> "Group":
        """Create a child cgroup; its own limits and ours both apply. Blocks: file writes.

        :class:`CgroupError` if a limit can't be set or the kernel reads back a weaker one; nothing is left behind.
        """
        directory = f"{self.directory}/{validate_name(name)}"
        files.create_directory(directory)
        group = Group(directory, self.controllers)
        try:
            group._enable_controllers()
            files.create_directory(group.leaf)
            return group.limit(limits) if limits != Limits() else group
        except CgroupError:
            group.remove()
            raise

    def limit(self, limits: Limits) -> "Group":
        """Set limits on a cgroup that has none; returns it with those in force. Blocks: file writes.

        :class:`CgroupError` if one can't be set or the kernel reads back a weaker one. Linux kills what is in it if
        that has more memory already.
        """
        lacking = limits.controllers - self.controllers
        if lacking:
            name = os.path.basename(self.directory)
            raise CgroupError(f"{self.directory}: no {', '.join(sorted(lacking))} controller for the limits of {name}")
        self._write_limits(limits)
        enforced = self.read_limits()
        if weaker := enforced.describe_weaker(limits):
            raise CgroupError(f"{self.directory}: {weaker}")
        return replace(self, enforced=enforced)

    def change_limits(self, limits: Limits) -> None:
        """Replace its own limits while processes run; ``None`` is no limit. Blocks: file writes.

        :class:`CgroupError` if the kernel refuses one or reads back a weaker one, or if more memory is in use than
        there may be: the kernel would kill the processes. Some of the limits may have been changed then.
        """
        used = files.read_counters(f"{self.directory}/memory.stat")
        kernel = used.get("kernel", 0) - used.get("slab_reclaimable", 0)  # with pipes; since 5.18
        held = sum(used.get(name, 0) for name in ("anon", "shmem", "sock")) + max(0, kernel)
        if limits.memory is not None and held > limits.memory:
            raise CgroupError(f"{self.directory}: more than {limits.memory} bytes of memory are in use")
        unlimited = {"memory.swap.max": limits.memory, "memory.max": limits.memory, "pids.max": limits.pids}
        for name, limit in {**unlimited, "cpu.max": limits.cpu}.items():
            if limit is None and os.path.exists(f"{self.directory}/{name}"):
                files.write_value(f"{self.directory}/{name}", "max")
        if limits.weight is None and "cpu" in self.controllers:
            files.write_value(f"{self.directory}/cpu.weight", 100)
        self._write_limits(limits)
        if weaker := self.read_limits().describe_weaker(limits):
            raise CgroupError(f"{self.directory}: {weaker}")

    def open_entry(self) -> CgroupEntry:
        """For CLONE_INTO_CGROUP: the process is cloned into the leaf. :class:`OSError` if the cgroup is gone."""
        return CgroupEntry(os.open(self.leaf, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def admit(self, pid: int) -> None:
        """Move a process in; processes that it spawned before stay where they were."""
        files.write_value(f"{self.leaf}/cgroup.procs", pid)

    def processes(self) -> frozenset[int]:
        """The pids in this cgroup and in all cgroups below."""
        return files.list_processes(files.list_tree(self.directory))

    def exceeds_pids(self) -> bool:
        """Whether more processes are in it than its limit. Never: they are born in it, which Linux refuses then.

        In a group that got its limit when processes were in it already, these are a jail's first two: each limit is
        higher.
        """
        return False

    def freeze(self) -> None:
        """Stop all processes here and below; return when they are frozen, after at most :data:`files.TIMEOUT`."""
        files.write_value(f"{self.directory}/cgroup.freeze", 1)
        if not files.wait_for_event(f"{self.directory}/cgroup.events", "frozen", 1):
            raise CgroupError(f"{self.directory}: not frozen after {files.TIMEOUT:g} s")

    def thaw(self) -> None:
        """Continue them, unless an enclosing cgroup is frozen too."""
        files.write_value(f"{self.directory}/cgroup.freeze", 0)

    def kill(self) -> None:
        """Send SIGKILL to all processes here and below; return when none is left, after at most :data:`files.TIMEOUT`.

        Their parent still has to reap them.
        """
        if os.path.exists(f"{self.directory}/cgroup.kill"):
            files.write_value(f"{self.directory}/cgroup.kill", 1)
        else:
            self._kill_one_by_one()
        if not files.wait_for_event(f"{self.directory}/cgroup.events", "populated", 0):
            raise CgroupError(f"{self.directory}: processes survive SIGKILL: {sorted(self.processes())}")

    def _kill_one_by_one(self) -> None:
        """For kernels before 5.14: frozen processes can't fork, but SIGKILL reaches them."""
        self.freeze()
        with files.kill_processes(files.list_tree(self.directory)):
            self.thaw()

    def remove_empty(self) -> bool:
        """Remove the cgroup if no process and no cgroup is in it, and say so. Blocks, but doesn't wait."""
        return files.remove_empty_directories((self.leaf, self.directory))

    def remove(self) -> None:
        """Remove the cgroup and all cgroups below; they must hold no process."""
        deadline = time.monotonic() + files.TIMEOUT
        if os.path.isdir(self.directory):
            files.wait_for_event(f"{self.directory}/cgroup.events", "populated", 0)
        files.remove_directories(files.list_tree(self.directory), max(0.0, deadline - time.monotonic()))

    def read_limits(self) -> EnforcedLimits:
        """The cgroup's own limits, as read back from the kernel."""
        quota, _, period = (files.read_optional(f"{self.directory}/cpu.max") or "max").partition(" ")
        return EnforcedLimits(
            memory=files.read_number(f"{self.directory}/memory.max"),
            swap=files.read_number(f"{self.directory}/memory.swap.max"),
            pids=files.read_number(f"{self.directory}/pids.max"),
            cpu=None if quota == "max" else int(quota) / int(period),
            weight=files.read_number(f"{self.directory}/cpu.weight"),
        )

    def usage(self) -> ResourceUsage:
        """The usage of this cgroup and all cgroups below."""
        used = files.read_counters(f"{self.directory}/cpu.stat").get("usage_usec")
        return ResourceUsage(
            memory=files.read_number(f"{self.directory}/memory.current"),
            peak=files.read_number(f"{self.directory}/memory.peak"),
            pids=files.read_number(f"{self.directory}/pids.current"),
            cpu_seconds=None if used is None else used / 1e6,
            source="cgroup v2",
        )

    def evidence(self) -> Evidence:
        """The kernel's counters of this cgroup; read them before :meth:`remove`.

        ``memory.events`` also counts all cgroups below; ``memory.events.local`` (5.2) only this cgroup's own limit. So
        an out-of-memory event of a child isn't reported for its parent.
        """
        memory = files.read_counters(f"{self.directory}/memory.events")
        own = files.read_counters(f"{self.directory}/memory.events.local") or memory
        out_of_memory = own.get("oom", 0) > 0 and memory.get("oom_kill", 0) > 0
        killed = files.read_counters(f"{self.leaf}/memory.events").get("oom_kill", 0)
        refused, above = self._count_refused_forks()
        cpu = files.read_counters(f"{self.directory}/cpu.stat")
        return Evidence(
            memory_limit=files.read_number(f"{self.directory}/memory.max"),
            pids_limit=files.read_number(f"{self.directory}/pids.max"),
            out_of_memory=out_of_memory,
            killed_above=0 if out_of_memory else killed,
            forks_refused=refused,
            refused_above=above,
            throttled=throttled_share(cpu.get("throttled_usec", 0), cpu.get("usage_usec", 0)),
        )

    def _count_refused_forks(self) -> tuple[int, bool]:
        """How many forks were refused to this cgroup's processes, and whether an enclosing cgroup's limit refused them.

        Since 6.11 the kernel counts in the cgroup of the limit. Before, it counts in the cgroup of the process, and the
        peak shows whether our limit was reached.
        """
        if os.path.exists(f"{self.directory}/pids.events.local"):
            own = files.read_counters(f"{self.directory}/pids.events.local").get("max", 0)
            return own, False
        refused = files.read_counters(f"{self.leaf}/pids.events").get("max", 0)
        limit, peak = files.read_number(f"{self.directory}/pids.max"), files.read_number(f"{self.directory}/pids.peak")
        return refused, refused > 0 and (limit is None or (peak is not None and peak < limit))

    def _write_limits(self, limits: Limits) -> None:
        if limits.memory is not None:
            if os.path.exists(f"{self.directory}/memory.swap.max"):  # absent in a kernel that can't swap
                files.write_value(f"{self.directory}/memory.swap.max", 0)
            files.write_value(f"{self.directory}/memory.oom.group", 1)  # kill the whole agent, not one process of it
            # No memory.high below it: without swap nothing can be reclaimed, so the kernel only slows the process,
            # by seconds at each step: one took more than a minute to reach 512M, instead of a second.
            files.write_value(f"{self.directory}/memory.max", limits.memory)
        if limits.pids is not None:
            files.write_value(f"{self.directory}/pids.max", min(limits.pids, MAX_PIDS))
        if limits.cpu is not None:
            files.write_value(f"{self.directory}/cpu.max", "{} {}".format(*cpu_quota(limits.cpu)))
        if limits.weight is not None:
            files.write_value(f"{self.directory}/cpu.weight", limits.weight)

    def _enable_controllers(self) -> None:
        if self.controllers:
            enable = " ".join(f"+{name}" for name in sorted(self.controllers))
            files.write_value(f"{self.directory}/cgroup.subtree_control", enable)
