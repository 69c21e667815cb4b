"""cgroup v1: create, limit, freeze, kill and measure groups. A group is one directory in each controller's hierarchy.

Only root can use them. No file kills a group, none makes the OOM killer kill all of it, and ``freezer`` may be missing,
so operations that are atomic in version 2 take several steps here.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentos_sdk.values import ResourceUsage

from . import files
from .values import (
    CONTROLLERS,
    CPU_PERIOD,
    MAX_PIDS,
    CgroupEntry,
    CgroupError,
    EnforcedLimits,
    Evidence,
    Limits,
    cpu_quota,
    shares_from_weight,
    throttled_share,
    validate_name,
    weight_from_shares,
)

MEMORY_CHARGE_BATCH = 64 << 12  # bytes; the kernel charges a limit for up to 64 pages at a time
SOCKET_SHARE = 4  # buffers of sockets are counted apart: they get a quarter of the memory limit on top of it
NO_MEMORY_LIMIT = 1 << 62  # bytes: from this value on memory.limit_in_bytes means "no limit"


class Group(Struct, frozen=True):
    """A cgroup that we created: its directory by controller. Controllers mounted together share a directory.

    ``enforced`` are the limits of its creation, as read back then.
    """

    directories: Mapping[str, str]
    enforced: EnforcedLimits = EnforcedLimits()

    version = 1

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that limit something in it."""
        return CONTROLLERS & self.directories.keys()

    @property
    def paths(self) -> tuple[str, ...]:
        """Its directories, without duplicates."""
        return tuple(dict.fromkeys(self.directories.values()))

    def create_child(self, name: str, limits: Limits) -> "Group":
        """Create a child cgroup; its own limits and ours both apply. Blocks: file writes.

        :class:`CgroupError` if a limit can't be set or the kernel reads back a weaker one; nothing is left behind.
        A CPU share above that of an enclosing cgroup is lowered to that one: version 1 refuses it.
        """
        lacking = limits.controllers - self.controllers
        if lacking:
            raise CgroupError(f"no {', '.join(sorted(lacking))} controller for the limits of {name}")
        validate_name(name)
        group = Group({controller: f"{directory}/{name}" for controller, directory in self.directories.items()})
        created: list[str] = []
        try:
            for directory in group.paths:
                files.create_directory(directory)
                created.append(directory)
            group._write_limits(limits)
            group._bound_sockets(_read_memory_limit(self._path("memory", "memory.kmem.tcp.limit_in_bytes")))
            enforced = group.read_limits() if limits != Limits() else EnforcedLimits()
            if weaker := enforced.describe_weaker(limits):
                raise CgroupError(f"{name}: {weaker}")
        except CgroupError:
            files.remove_directories(created)
            raise
        return replace(group, enforced=enforced)

    def change_limits(self, limits: Limits) -> None:
        """Replace its own limits while processes run; ``None`` is no limit. Blocks: file writes.

        :class:`CgroupError` if the kernel refuses one or reads back a weaker one: it refuses a memory limit below what
        is in use, and a CPU share below that of a cgroup in this one. Some of the limits may have been changed then.
        """
        if "memory" in self.directories:
            self._lift_memory_limit(limits.memory)
        if limits.pids is None and "pids" in self.directories:
            files.write_value(self._path("pids", "pids.max"), "max")
        if "cpu" in self.directories:
            if limits.cpu is None:
                files.write_value(self._path("cpu", "cpu.cfs_quota_us"), -1)
            if limits.weight is None:
                files.write_value(self._path("cpu", "cpu.shares"), shares_from_weight(100))
        self._write_limits(limits)
        if weaker := self.read_limits().describe_weaker(limits):
            raise CgroupError(f"{self.paths[0]}: {weaker}")

    def _lift_memory_limit(self, memory: int | None) -> None:
        """Make room for a higher limit: that of memory with swap is never below that of memory alone."""
        sockets = self._path("memory", "memory.kmem.tcp.limit_in_bytes")
        if memory is None and _read_memory_limit(sockets) is not None:
            files.write_value(sockets, -1)
        now = _read_memory_limit(self._path("memory", "memory.limit_in_bytes"))
        if memory is None or (now is not None and now < memory):
            for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes"):
                if os.path.exists(path := self._path("memory", name)):
                    files.write_value(path, -1 if memory is None else memory)

    def open_entry(self) -> CgroupEntry:
        """Open the ``tasks`` files, for a process that moves itself first; :class:`OSError` if the cgroup is gone.

        Unlike :meth:`admit` this doesn't wait until no process in the whole system is about to fork, which takes some
        milliseconds: a single-threaded process that moves itself has no other thread that could fork.
        """
        tasks: list[int] = []
        try:
            for directory in self.paths:
                tasks.append(os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC))
        except BaseException:
            CgroupEntry(tasks=tasks).close()
            raise
        return CgroupEntry(tasks=tasks)

    def admit(self, pid: int) -> None:
        """Move a process in; processes that it spawned before stay where they were.

        After a :class:`CgroupError` the process may be in some of the hierarchies only: kill it.
        """
        for directory in self.paths:
            files.write_value(f"{directory}/cgroup.procs", pid)

    def processes(self) -> frozenset[int]:
        """The pids in this cgroup and in all cgroups below."""
        return files.list_processes(self._list_tree())

    def exceeds_pids(self) -> bool:
        """Whether more processes are in it and below than its limit: Linux refuses forks, but lets processes in."""
        limit = files.read_number(self._path("pids", "pids.max"))
        return limit is not None and (files.read_number(self._path("pids", "pids.current")) or 0) > limit

    def freeze(self) -> None:
        """Stop all processes here and below; return when they are frozen, after at most :data:`files.TIMEOUT`.

        :class:`CgroupError` if the host has no freezer.
        """
        path = self._freezer_file()
        files.write_value(path, "FROZEN")
        deadline = time.monotonic() + files.TIMEOUT
        while files.read_text(path) != "FROZEN":
            if time.monotonic() > deadline:
                raise CgroupError(f"{path}: not FROZEN after {files.TIMEOUT:g} s")
            time.sleep(files.POLL_INTERVAL)
            files.write_value(path, "FROZEN")  # the kernel retries the processes that it couldn't freeze

    def thaw(self) -> None:
        """Continue them, unless an enclosing cgroup is frozen too."""
        files.write_value(self._freezer_file(), "THAWED")

    def _freezer_file(self) -> str:
        if "freezer" not in self.directories:
            raise CgroupError("no freezer controller")
        return self._path("freezer", "freezer.state")

    def kill(self) -> None:
        """Send SIGKILL to all processes here and below; return when none is left, after at most :data:`files.TIMEOUT`.

        Meanwhile they are frozen, or forbidden to fork, so no new process escapes. Their parent still has to reap them.
        :class:`CgroupError` if an enclosing cgroup is frozen: they die when it is thawed.
        """
        deadline = time.monotonic() + files.TIMEOUT
        if not self.processes():
            return
        with contextlib.ExitStack() as stack:
            with self._forbid_forks():
                dying = stack.enter_context(files.kill_processes(self._list_tree()))
            while dying:
                if files.read_number(self._path("freezer", "freezer.parent_freezing")):
                    raise CgroupError(f"a group around this one is frozen: {sorted(dying)} die when it is thawed")
                files.wait_for_exits(dying.values(), deadline)
                if time.monotonic() > deadline:
                    raise CgroupError(f"processes survive SIGKILL: {sorted(self.processes())}")
                dying = stack.enter_context(files.kill_processes(self._list_tree()))

    @contextlib.contextmanager
    def _forbid_forks(self) -> Iterator[None]:
        if "freezer" in self.directories:
            with contextlib.suppress(CgroupError):  # uninterruptible sleep prevents freezing, but also forking
                self.freeze()
            try:
                yield
            finally:
                self.thaw()
        elif "pids" in self.directories:
            path = f"{self.directories['pids']}/pids.max"
            before = files.read_text(path)
            files.write_value(path, 0)
            try:
                yield
            finally:
                files.write_value(path, before)
        else:
            yield

    def remove_empty(self) -> bool:
        """Remove the cgroup if no process and no cgroup is in it, and say so. Blocks, but doesn't wait."""
        return files.remove_empty_directories(self.paths)

    def remove(self) -> None:
        """Remove the cgroup and all cgroups below; they must hold no process."""
        files.remove_directories(self._list_tree())

    def read_limits(self) -> EnforcedLimits:
        """The cgroup's own limits, as read back from the kernel."""
        memory = _read_memory_limit(self._path("memory", "memory.limit_in_bytes"))
        both = _read_memory_limit(self._path("memory", "memory.memsw.limit_in_bytes"))
        quota = files.read_number(self._path("cpu", "cpu.cfs_quota_us"))
        period = files.read_number(self._path("cpu", "cpu.cfs_period_us"))
        shares = files.read_number(self._path("cpu", "cpu.shares"))
        return EnforcedLimits(
            memory=memory,
            swap=None if memory is None or both is None else both - memory,
            sockets=_read_memory_limit(self._path("memory", "memory.kmem.tcp.limit_in_bytes")),
            pids=files.read_number(self._path("pids", "pids.max")),
            cpu=quota / period if quota and period and quota > 0 else None,
            weight=None if shares is None else weight_from_shares(shares),
        )

    def usage(self) -> ResourceUsage:
        """The usage of this cgroup and all cgroups below."""
        used = files.read_number(self._path("cpuacct", "cpuacct.usage"))
        return ResourceUsage(
            memory=files.read_number(self._path("memory", "memory.usage_in_bytes")),
            peak=files.read_number(self._path("memory", "memory.max_usage_in_bytes")),
            pids=files.read_number(self._path("pids", "pids.current")),
            cpu_seconds=None if used is None else used / 1e9,
            source="cgroup v1",
        )

    def evidence(self) -> Evidence:
        """The kernel's counters of this cgroup; read them before :meth:`remove`. Its limits, if one was reached.

        Without ``cpuacct``, ``throttled`` is the share of periods in which the cgroup was throttled.
        """
        out_of_memory, killed_above = self._count_oom_kills()
        refused = files.read_counters(self._path("pids", "pids.events")).get("max", 0)
        enforced = self.read_limits() if out_of_memory or killed_above or refused else EnforcedLimits()
        peak = files.read_number(self._path("pids", "pids.peak")) if refused else None
        return Evidence(
            memory_limit=enforced.memory,
            pids_limit=enforced.pids,
            out_of_memory=out_of_memory,
            killed_above=killed_above,
            forks_refused=refused,
            refused_above=refused > 0 and (enforced.pids is None or (peak is not None and peak < enforced.pids)),
            throttled=self._measure_throttling(),
        )

    def _measure_throttling(self) -> float:
        cpu = files.read_counters(self._path("cpu", "cpu.stat"))
        if not cpu.get("nr_throttled"):
            return 0.0
        used = files.read_number(self._path("cpuacct", "cpuacct.usage"))
        if used is None:
            return throttled_share(cpu["nr_throttled"], cpu.get("nr_periods", 0) - cpu["nr_throttled"])
        return throttled_share(cpu.get("throttled_time", 0), used)

    def _count_oom_kills(self) -> tuple[bool, int]:
        """Whether this cgroup's limit had processes killed, and how many of its own processes another limit killed.

        The kernel counts a kill in the cgroup of the process, not in that of the limit. The innermost enclosing limit
        that was ever reached is taken as the cause.
        """
        own = self.directories.get("memory", "")
        out_of_memory, killed_above = False, 0
        for directory in files.list_tree(own) if own else ():
            killed = files.read_counters(f"{directory}/memory.oom_control").get("oom_kill", 0)
            enclosing = directory
            while killed and enclosing != own and not _reached_memory_limit(enclosing):
                enclosing = os.path.dirname(enclosing)
            if killed and enclosing == own:
                out_of_memory |= _reached_memory_limit(own)
                killed_above += killed if directory == own else 0
        return out_of_memory, 0 if out_of_memory else killed_above

    def _write_limits(self, limits: Limits) -> None:
        hierarchy = self._path("memory", "memory.use_hierarchy")
        if files.read_number(hierarchy) == 0:  # before 5.11 limits apply to child cgroups only with use_hierarchy
            files.write_value(hierarchy, 1)
        if limits.memory is not None:
            files.write_value(self._path("memory", "memory.limit_in_bytes"), limits.memory)
            with_swap = self._path("memory", "memory.memsw.limit_in_bytes")
            if os.path.exists(with_swap):
                files.write_value(with_swap, limits.memory)
            else:
                files.write_value(self._path("memory", "memory.swappiness"), 0)
            sockets = self._path("memory", "memory.kmem.tcp.limit_in_bytes")  # UDP's buffers are in it, too
            if os.path.exists(sockets):  # absent in a kernel without it, or with nokmem
                files.write_value(sockets, limits.memory // SOCKET_SHARE)
        if limits.pids is not None:
            files.write_value(self._path("pids", "pids.max"), min(limits.pids, MAX_PIDS))
        if limits.cpu is not None:
            quota, period = min(
                [cpu_quota(limits.cpu), *self._enclosing_cpu_quotas()], key=lambda turn: turn[0] / turn[1]
            )
            files.write_value(self._path("cpu", "cpu.cfs_period_us"), period)
            files.write_value(self._path("cpu", "cpu.cfs_quota_us"), quota)
        if limits.weight is not None:
            files.write_value(self._path("cpu", "cpu.shares"), shares_from_weight(limits.weight))

    def _bound_sockets(self, enclosing: int | None) -> None:
        """Have buffers of sockets count in the enclosing cgroup, too: Linux counts them only where a limit was set."""
        path = self._path("memory", "memory.kmem.tcp.limit_in_bytes")
        if enclosing is not None and _read_memory_limit(path) is None:
            files.write_value(path, enclosing)

    def _enclosing_cpu_quotas(self) -> Sequence[tuple[int, int]]:
        """Quota and period of every enclosing cgroup that has them, up to the mount point of the hierarchy."""
        found = []
        directory = os.path.dirname(self.directories["cpu"])
        while (quota := files.read_number(f"{directory}/cpu.cfs_quota_us")) is not None:
            if quota > 0:
                found.append((quota, files.read_number(f"{directory}/cpu.cfs_period_us") or CPU_PERIOD))
            directory = os.path.dirname(directory)
        return found

    def _path(self, controller: str, name: str) -> str:
        """The path of a controller's file; a path that doesn't exist if there is no such controller."""
        return f"{self.directories.get(controller, '/proc/self/no')}/{name}"

    def _list_tree(self) -> Sequence[str]:
        return [found for directory in self.paths for found in files.list_tree(directory)]


def _reached_memory_limit(directory: str) -> bool:
    """Whether a cgroup reached its memory limit. Not every kernel counts refusals (6.18 has 0 after a kill)."""
    limit = _read_memory_limit(f"{directory}/memory.limit_in_bytes")
    peak = files.read_number(f"{directory}/memory.max_usage_in_bytes") or 0
    names = ("memory.failcnt", "memory.memsw.failcnt")
    return limit is not None and (
        peak > limit - MEMORY_CHARGE_BATCH or any(files.read_number(f"{directory}/{name}") for name in names)
    )


def _read_memory_limit(path: str) -> int | None:
    size = files.read_number(path)
    return None if size is None or size >= NO_MEMORY_LIMIT else size
