"""Control groups of version 1: a hierarchy for each controller, and a group is one directory in each of them.

Only root has them. There is no file that kills a group, none that makes the OOM killer take all of it, and the
``freezer`` may be missing: what version 2 does in one step is done here step by step.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from agentos.sandbox import cgroup_files as files
from agentos.sandbox.cgroup_values import (
    LIMITING,
    MAX_PIDS,
    PERIOD,
    CgroupError,
    Evidence,
    InForce,
    Limits,
    Usage,
    Ways,
    a_name,
    shares_of,
    turns,
    waiting,
    weight_of,
)

BATCH = 64 << 12  # bytes; the kernel takes up to 64 pages from a limit at a time
NO_LIMIT = 1 << 62  # bytes: from here on memory.limit_in_bytes is the kernel's way to say that there is none


@frozen
class Group:
    """A group that we made: its directory by controller, in which controllers that are mounted together share one."""

    directories: Mapping[str, str]

    version = 1

    @property
    def controllers(self) -> frozenset[str]:
        """Those that limit something in it."""
        return LIMITING & self.directories.keys()

    @property
    def places(self) -> tuple[str, ...]:
        """Its directories."""
        return tuple(dict.fromkeys(self.directories.values()))

    def nest(self, name: str, limits: Limits) -> "Group":
        """Make a group in this one: what it may use is bounded by its limits and by ours. Blocks: file writes.

        :class:`CgroupError`, and nothing left behind, if a limit can't be had or isn't what the kernel then says.
        A CPU share above that of a group around it is cut down to that one: version 1 refuses it.
        """
        lacking = limits.controllers - self.controllers
        if lacking:
            raise CgroupError(f"no {', '.join(sorted(lacking))} controller for the limits of {name}")
        a_name(name)
        group = Group({controller: f"{directory}/{name}" for controller, directory in self.directories.items()})
        made: list[str] = []
        try:
            for directory in group.places:
                files.make(directory)
                made.append(directory)
            group._limit(limits)
            if weaker := group.in_force().weaker_than(limits):
                raise CgroupError(f"{name}: {weaker}")
        except CgroupError:
            files.remove(made)
            raise
        return group

    def ways(self) -> Ways:
        """For a process that moves itself, before it does anything else; :class:`OSError` if the group is gone.

        Unlike :meth:`admit` that doesn't wait until nobody in the whole system is about to fork, which takes some
        milliseconds: who has one thread and moves it has no other that could.
        """
        tasks: list[int] = []
        try:
            for directory in self.places:
                tasks.append(os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC))
        except BaseException:
            Ways(tasks=tasks).close()
            raise
        return Ways(tasks=tasks)

    def admit(self, pid: int) -> None:
        """Move a process in; what it spawned before stays where it was.

        After a :class:`CgroupError` it may be in some of the hierarchies only: kill it.
        """
        for directory in self.places:
            files.write(f"{directory}/cgroup.procs", pid)

    def processes(self) -> frozenset[int]:
        """The processes here and in all groups below."""
        return files.processes(self._tree())

    def freeze(self) -> None:
        """Stop all processes here and below, and return when they stand still; at most :data:`files.TIMEOUT`.

        :class:`CgroupError` where the host has no freezer.
        """
        path = self._freezer()
        files.write(path, "FROZEN")
        deadline = time.monotonic() + files.TIMEOUT
        while files.read(path) != "FROZEN":
            if time.monotonic() > deadline:
                raise CgroupError(f"{path}: not FROZEN after {files.TIMEOUT:g} s")
            time.sleep(files.TICK)
            files.write(path, "FROZEN")  # the kernel tries again for those that couldn't be frozen

    def thaw(self) -> None:
        """Let them go on, unless a group around this one is frozen too."""
        files.write(self._freezer(), "THAWED")

    def _freezer(self) -> str:
        if "freezer" not in self.directories:
            raise CgroupError("no freezer controller")
        return self._file("freezer", "freezer.state")

    def kill(self) -> None:
        """SIGKILL to all processes here and below, and return when none is left; at most :data:`files.TIMEOUT`.

        They are frozen, or forbidden to fork, meanwhile: nobody is quicker than us. Whoever is their parent still
        has to wait for them. :class:`CgroupError` if a group around this one is frozen: they die when it is thawed.
        """
        deadline = time.monotonic() + files.TIMEOUT
        if not self.processes():
            return
        with contextlib.ExitStack() as stack:
            with self._nobody_forks():
                dying = stack.enter_context(files.killed(self._tree()))
            while dying:
                if files.number(self._file("freezer", "freezer.parent_freezing")):
                    raise CgroupError(f"a group around this one is frozen: {sorted(dying)} die when it is thawed")
                files.wait_ended(dying.values(), deadline)
                if time.monotonic() > deadline:
                    raise CgroupError(f"processes survive SIGKILL: {sorted(self.processes())}")
                dying = stack.enter_context(files.killed(self._tree()))

    @contextlib.contextmanager
    def _nobody_forks(self) -> Iterator[None]:
        if "freezer" in self.directories:
            with contextlib.suppress(CgroupError):  # who sleeps uninterruptibly can't be frozen, and doesn't fork
                self.freeze()
            try:
                yield
            finally:
                self.thaw()
        elif "pids" in self.directories:
            path = f"{self.directories['pids']}/pids.max"
            before = files.read(path)
            files.write(path, 0)
            try:
                yield
            finally:
                files.write(path, before)
        else:
            yield

    def remove(self) -> None:
        """Remove the group and all groups below; there must be no process left in them."""
        files.remove(self._tree())

    def in_force(self) -> InForce:
        """The group's own limits, as the kernel says them."""
        memory = _limit_in(self._file("memory", "memory.limit_in_bytes"))
        both = _limit_in(self._file("memory", "memory.memsw.limit_in_bytes"))
        quota = files.number(self._file("cpu", "cpu.cfs_quota_us"))
        period = files.number(self._file("cpu", "cpu.cfs_period_us"))
        shares = files.number(self._file("cpu", "cpu.shares"))
        return InForce(
            memory=memory,
            swap=None if memory is None or both is None else both - memory,
            pids=files.number(self._file("pids", "pids.max")),
            cpu=quota / period if quota and period and quota > 0 else None,
            weight=None if shares is None else weight_of(shares),
        )

    def usage(self) -> Usage:
        """What is used here and below."""
        used = files.number(self._file("cpuacct", "cpuacct.usage"))
        return Usage(
            memory=files.number(self._file("memory", "memory.usage_in_bytes")),
            peak=files.number(self._file("memory", "memory.max_usage_in_bytes")),
            pids=files.number(self._file("pids", "pids.current")),
            cpu_seconds=None if used is None else used / 1e9,
        )

    def evidence(self) -> Evidence:
        """What the kernel counted up to now; to be read before :meth:`remove`.

        Without ``cpuacct`` the share of throttling is that of periods in which the group was throttled.
        """
        in_force = self.in_force()
        out_of_memory, killed_above = self._killed_for_memory()
        refused = files.counters(self._file("pids", "pids.events")).get("max", 0)
        peak = files.number(self._file("pids", "pids.peak"))
        cpu = files.counters(self._file("cpu", "cpu.stat"))
        used = files.number(self._file("cpuacct", "cpuacct.usage"))
        turns_had = cpu.get("nr_periods", 0) - cpu.get("nr_throttled", 0)
        return Evidence(
            memory_limit=in_force.memory,
            pids_limit=in_force.pids,
            out_of_memory=out_of_memory,
            killed_above=killed_above,
            forks_refused=refused,
            refused_above=refused > 0 and (in_force.pids is None or (peak is not None and peak < in_force.pids)),
            throttled=waiting(cpu.get("nr_throttled", 0), turns_had)
            if used is None
            else waiting(cpu.get("throttled_time", 0), used),
        )

    def _killed_for_memory(self) -> tuple[bool, int]:
        """Whether processes were killed because of this group's limit, and how many of its own for another's.

        The kernel counts a kill where the process was, not where the limit is: the limit that killed is taken to be
        the innermost around the process that was ever reached.
        """
        own = self.directories.get("memory", "")
        out_of_memory, killed_above = False, 0
        for directory in files.tree(own) if own else ():
            killed = files.counters(f"{directory}/memory.oom_control").get("oom_kill", 0)
            around = directory
            while killed and around != own and not _full(around):
                around = os.path.dirname(around)
            if killed and around == own:
                out_of_memory |= _full(own)
                killed_above += killed if directory == own else 0
        return out_of_memory, 0 if out_of_memory else killed_above

    def _limit(self, limits: Limits) -> None:
        hierarchy = self._file("memory", "memory.use_hierarchy")
        if files.number(hierarchy) == 0:  # before 5.11 a group's limits bound what is below only if asked to
            files.write(hierarchy, 1)
        if limits.memory is not None:
            files.write(self._file("memory", "memory.limit_in_bytes"), limits.memory)
            with_swap = self._file("memory", "memory.memsw.limit_in_bytes")
            if os.path.exists(with_swap):
                files.write(with_swap, limits.memory)
            else:
                files.write(self._file("memory", "memory.swappiness"), 0)
        if limits.pids is not None:
            files.write(self._file("pids", "pids.max"), min(limits.pids, MAX_PIDS))
        if limits.cpu is not None:
            quota, period = min([turns(limits.cpu), *self._turns_around()], key=lambda turn: turn[0] / turn[1])
            files.write(self._file("cpu", "cpu.cfs_period_us"), period)
            files.write(self._file("cpu", "cpu.cfs_quota_us"), quota)
        if limits.weight is not None:
            files.write(self._file("cpu", "cpu.shares"), shares_of(limits.weight))

    def _turns_around(self) -> Sequence[tuple[int, int]]:
        """Quota and period of every group around this one that has them, up to where the hierarchy is mounted."""
        found = []
        directory = os.path.dirname(self.directories["cpu"])
        while (quota := files.number(f"{directory}/cpu.cfs_quota_us")) is not None:
            if quota > 0:
                found.append((quota, files.number(f"{directory}/cpu.cfs_period_us") or PERIOD))
            directory = os.path.dirname(directory)
        return found

    def _file(self, controller: str, name: str) -> str:
        """The path of a controller's file; one that isn't there, where the controller isn't."""
        return f"{self.directories.get(controller, '/proc/self/no')}/{name}"

    def _tree(self) -> Sequence[str]:
        return [found for directory in self.places for found in files.tree(directory)]


def _full(directory: str) -> bool:
    """Whether a group came up to its memory limit: not every kernel counts refusals (6.18 has 0 after a kill)."""
    limit = _limit_in(f"{directory}/memory.limit_in_bytes")
    peak = files.number(f"{directory}/memory.max_usage_in_bytes") or 0
    names = ("memory.failcnt", "memory.memsw.failcnt")
    return limit is not None and (peak > limit - BATCH or any(files.number(f"{directory}/{name}") for name in names))


def _limit_in(path: str) -> int | None:
    size = files.number(path)
    return None if size is None or size >= NO_LIMIT else size
