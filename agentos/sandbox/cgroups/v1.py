"""cgroup v1: create, limit, freeze, kill and measure groups. A group is one directory in each controller's hierarchy.

Only root can use them. No file kills a group, none makes the OOM killer kill all of it, and ``freezer`` may be missing,
so operations that are atomic in version 2 take several steps here.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from . import files as files
from .values import (
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

BATCH = 64 << 12  # bytes; the kernel charges a limit for up to 64 pages at a time
NO_LIMIT = 1 << 62  # bytes: from this value on memory.limit_in_bytes means "no limit"


@frozen
class Group:
    """A cgroup that we created: its directory by controller. Controllers mounted together share a directory."""

    directories: Mapping[str, str]

    version = 1

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that limit something in it."""
        return LIMITING & self.directories.keys()

    @property
    def places(self) -> tuple[str, ...]:
        """Its directories, without duplicates."""
        return tuple(dict.fromkeys(self.directories.values()))

    def nest(self, name: str, limits: Limits) -> "Group":
        """Create a child cgroup; its own limits and ours both apply. Blocks: file writes.

        :class:`CgroupError` if a limit can't be set or the kernel reads back a weaker one; nothing is left behind.
        A CPU share above that of an enclosing cgroup is lowered to that one: version 1 refuses it.
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
        """Open the ``tasks`` files, for a process that moves itself first; :class:`OSError` if the cgroup is gone.

        Unlike :meth:`admit` this doesn't wait until no process in the whole system is about to fork, which takes some
        milliseconds: a single-threaded process that moves itself has no other thread that could fork.
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
        """Move a process in; processes that it spawned before stay where they were.

        After a :class:`CgroupError` the process may be in some of the hierarchies only: kill it.
        """
        for directory in self.places:
            files.write(f"{directory}/cgroup.procs", pid)

    def processes(self) -> frozenset[int]:
        """The pids in this cgroup and in all cgroups below."""
        return files.processes(self._tree())

    def freeze(self) -> None:
        """Stop all processes here and below; return when they are frozen, after at most :data:`files.TIMEOUT`.

        :class:`CgroupError` if the host has no freezer.
        """
        path = self._freezer()
        files.write(path, "FROZEN")
        deadline = time.monotonic() + files.TIMEOUT
        while files.read(path) != "FROZEN":
            if time.monotonic() > deadline:
                raise CgroupError(f"{path}: not FROZEN after {files.TIMEOUT:g} s")
            time.sleep(files.TICK)
            files.write(path, "FROZEN")  # the kernel retries the processes that it couldn't freeze

    def thaw(self) -> None:
        """Continue them, unless an enclosing cgroup is frozen too."""
        files.write(self._freezer(), "THAWED")

    def _freezer(self) -> str:
        if "freezer" not in self.directories:
            raise CgroupError("no freezer controller")
        return self._file("freezer", "freezer.state")

    def kill(self) -> None:
        """Send SIGKILL to all processes here and below; return when none is left, after at most :data:`files.TIMEOUT`.

        Meanwhile they are frozen, or forbidden to fork, so no new process escapes. Their parent still has to reap them.
        :class:`CgroupError` if an enclosing cgroup is frozen: they die when it is thawed.
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
            with contextlib.suppress(CgroupError):  # uninterruptible sleep prevents freezing, but also forking
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
        """Remove the cgroup and all cgroups below; they must hold no process."""
        files.remove(self._tree())

    def in_force(self) -> InForce:
        """The cgroup's own limits, as read back from the kernel."""
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
        """The usage of this cgroup and all cgroups below."""
        used = files.number(self._file("cpuacct", "cpuacct.usage"))
        return Usage(
            memory=files.number(self._file("memory", "memory.usage_in_bytes")),
            peak=files.number(self._file("memory", "memory.max_usage_in_bytes")),
            pids=files.number(self._file("pids", "pids.current")),
            cpu_seconds=None if used is None else used / 1e9,
        )

    def evidence(self) -> Evidence:
        """The kernel's counters of this cgroup; read them before :meth:`remove`.

        Without ``cpuacct``, ``throttled`` is the share of periods in which the cgroup was throttled.
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
        """Whether this cgroup's limit had processes killed, and how many of its own processes another limit killed.

        The kernel counts a kill in the cgroup of the process, not in that of the limit. The innermost enclosing limit
        that was ever reached is taken as the cause.
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
        if files.number(hierarchy) == 0:  # before 5.11 limits apply to child cgroups only with use_hierarchy
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
        """Quota and period of every enclosing cgroup that has them, up to the mount point of the hierarchy."""
        found = []
        directory = os.path.dirname(self.directories["cpu"])
        while (quota := files.number(f"{directory}/cpu.cfs_quota_us")) is not None:
            if quota > 0:
                found.append((quota, files.number(f"{directory}/cpu.cfs_period_us") or PERIOD))
            directory = os.path.dirname(directory)
        return found

    def _file(self, controller: str, name: str) -> str:
        """The path of a controller's file; a path that doesn't exist if there is no such controller."""
        return f"{self.directories.get(controller, '/proc/self/no')}/{name}"

    def _tree(self) -> Sequence[str]:
        return [found for directory in self.places for found in files.tree(directory)]


def _full(directory: str) -> bool:
    """Whether a cgroup reached its memory limit. Not every kernel counts refusals (6.18 has 0 after a kill)."""
    limit = _limit_in(f"{directory}/memory.limit_in_bytes")
    peak = files.number(f"{directory}/memory.max_usage_in_bytes") or 0
    names = ("memory.failcnt", "memory.memsw.failcnt")
    return limit is not None and (peak > limit - BATCH or any(files.number(f"{directory}/{name}") for name in names))


def _limit_in(path: str) -> int | None:
    size = files.number(path)
    return None if size is None or size >= NO_LIMIT else size
