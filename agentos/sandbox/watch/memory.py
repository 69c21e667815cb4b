"""Memory watcher: kills groups over their memory limit, on hosts without a usable memory cgroup.

One task watches all groups. A group is an agent with all programs that it runs; the groups of agents that it spawned
are nested in it, as with cgroups. In addition, RLIMIT_DATA holds each process to twice the limit, so an agent exceeds
its limit at most by what its processes allocate between two looks. The watcher counts what a cgroup would count: the
memory of the processes with their page tables, and the contents of the agent's own tmpfs mounts. For watched agents the
seccomp filter denies memory that would be in neither: memfds, System V segments, shared anonymous mappings, vmsplice.

Of Linux's own memory for an agent (:data:`UNCOUNTED`) only numbers of objects are limited.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import trio
from attrs import Factory, define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.sandbox.cgroups.values import format_size
from agentos.sandbox.errors import EXHAUSTED

from . import processes as process_list
from .processes import Memory, Process, ProcessCache, distinct_memory, read_mapped, read_memory

log = logging.getLogger(__name__)

MIN_INTERVAL = (
    0.1  # seconds between two checks of the host's free memory; a drop by a quarter of a limit triggers a look
)
UNCOUNTED = "memory of Linux itself: buffers of sockets and pipes, mappings, file locks"  # for the isolation report
CHECKS_PER_CALL = 10  # checks per call of the thread
IDLE_INTERVAL = 2.0  # seconds between two looks while every group uses less than a quarter of its limit
BUSY_INTERVAL = 0.5  # while every group has a quarter left; otherwise every pulse
INTERVAL_FACTOR = 20  # times the duration of a look must pass before the next: at most 5 % of a CPU
LOW_MEMORY_INTERVAL_FACTOR = 4  # the same while the host's free memory drops


class Exceeded(Struct, frozen=True):
    """A group exceeded its limit. ``found`` is bytes, ``measure`` how they were counted."""

    limit: int
    found: int
    measure: str  # PSS or RSS

    def __str__(self) -> str:
        found = format_size(self.found >> 20 << 20 or self.found)
        return f"memory limit {format_size(self.limit)} reached (watched: {self.measure} {found})"


@define(eq=False)
class Tmpfs:
    """An agent's tmpfs mounts, kept open to measure how full they are. Thread-safe."""

    _fds: list[int]
    devices: frozenset[int]
    _closing: threading.Lock = Factory(threading.Lock)

    @classmethod
    def of(cls, fds: Collection[int]) -> "Tmpfs":
        """Duplicate these descriptors; the caller keeps its own."""
        found = cls([], frozenset(os.fstat(fd).st_dev for fd in fds))
        try:
            for fd in fds:
                found._fds.append(os.dup(fd))
        except OSError:
            found.close()
            raise
        return found

    def used(self) -> int:
        """Bytes used in all mounts; 0 after close."""
        with self._closing:
            return sum((found.f_blocks - found.f_bfree) * found.f_frsize for found in map(os.fstatvfs, self._fds))

    def close(self) -> None:
        """Close the descriptors; the lock keeps a measuring thread from using a reused descriptor number."""
        with self._closing:
            while self._fds:
                os.close(self._fds.pop())


class Group(Struct, frozen=True):
    """A watched agent: PID 1 of each of its PID namespaces, with its start time."""

    limit: int  # bytes
    exceeded: Callable[[Exceeded], None]
    parent: int | None
    roots: Mapping[int, int]  # pid to start time in clock ticks
    tmpfs: Tmpfs


def subtree_sums(own: Mapping[int, int], parents: Mapping[int, int | None]) -> dict[int, int]:
    """Sum the amounts of each group and all groups below it."""
    sums = dict.fromkeys(own, 0)
    for group, amount in own.items():
        current: int | None = group
        while current is not None:
            sums[current] += amount
            current = parents[current]
    return sums


def outermost(over: Collection[int], parents: Mapping[int, int | None]) -> set[int]:
    """Return the groups that no other group in ``over`` contains."""

    def ancestors(group: int) -> Iterable[int]:
        current = parents[group]
        while current is not None:
            yield current
            current = parents[current]

    return {group for group in over if not any(outer in over for outer in ancestors(group))}


@define
class _MemoryScanner:
    """State that is kept between looks; used by one thread at a time."""

    cache: ProcessCache = Factory(ProcessCache)
    roots: frozenset[int] = frozenset()
    free: int = 0  # the host's free memory at the last look, in bytes
    scan_seconds: float = 0.0  # duration of the last look
    last_scan: float = float("-inf")
    max_share: float = 1.0  # the largest used share of a limit

    def watch(self, groups: Mapping[int, Group]) -> dict[int, tuple[Group, Exceeded]]:
        """Check for a second, or until a group is over its limit: a thread per check would cost more than the check."""
        for _ in range(CHECKS_PER_CALL):
            now = dict(groups)  # a copy: the event loop adds and removes groups
            if not now:
                break
            if found := self.scan_if_due(now):
                return {name: (now[name], exceeded) for name, exceeded in found.items()}
            time.sleep(MIN_INTERVAL)
        return {}

    def scan_if_due(self, groups: Mapping[int, Group]) -> dict[int, Exceeded]:
        """Look if a look is due; returns the outermost groups over their limits."""
        free = _read_available_memory()
        now = time.monotonic()
        wait = IDLE_INTERVAL if self.max_share < 0.25 else BUSY_INTERVAL if self.max_share < 0.75 else MIN_INTERVAL
        dropping = self.free - free > min(group.limit for group in groups.values()) // 4
        roots = frozenset(pid for group in groups.values() for pid in group.roots)
        due = self.last_scan + max(wait, self.scan_seconds * INTERVAL_FACTOR) - MIN_INTERVAL / 2
        if dropping or roots - self.roots:
            due = self.last_scan + self.scan_seconds * LOW_MEMORY_INTERVAL_FACTOR
        if now < due:
            return {}
        self.roots = roots
        found = self._scan(groups)
        self.free, self.last_scan, self.scan_seconds = free, now, time.monotonic() - now
        return found

    def _scan(self, groups: Mapping[int, Group]) -> dict[int, Exceeded]:
        processes = self.cache.list_by_group({name: group.roots for name, group in groups.items()})
        parents = {name: group.parent if group.parent in groups else None for name, group in groups.items()}
        stored = {name: group.tmpfs.used() for name, group in groups.items()}
        upper_bounds = subtree_sums(
            {name: sum(one.rss + one.beyond for one in processes[name]) + stored[name] for name in groups}, parents
        )  # cheap, and never less than the actual use
        self.max_share = max(amount / groups[name].limit for name, amount in upper_bounds.items())
        candidates = {name for name, amount in upper_bounds.items() if amount > groups[name].limit}
        over = self._count(groups, parents, processes, stored, candidates) if candidates else {}
        return {name: over[name] for name in outermost(over, parents)}

    def _count(
        self,
        groups: Mapping[int, Group],
        parents: Mapping[int, int | None],
        processes: Mapping[int, Sequence[Process]],
        stored: Mapping[int, int],
        candidates: Collection[int],
    ) -> dict[int, Exceeded]:
        """Count exactly the groups that may be over their limit, and the groups within them."""
        affected = {name for name in groups if _is_within_any(name, candidates, parents)}
        by_group = {name: distinct_memory(processes[name]) for name in affected}
        counted = {name: sum(map(read_memory, by_group[name]), Memory()) for name in affected}
        own = dict.fromkeys(groups, 0)
        for name in affected:
            shared = counted[name].shared
            if shared and stored[name]:  # mapped tmpfs pages are in both figures
                shared -= min(shared, sum(read_mapped(one, groups[name].tmpfs.devices) for one in by_group[name]))
            own[name] = counted[name].own + shared + stored[name]
        sums = subtree_sums(own, parents)
        measure = "PSS" if all(one.exact for one in counted.values()) else "RSS"
        return {
            name: Exceeded(groups[name].limit, sums[name], measure)
            for name in candidates
            if sums[name] > groups[name].limit
        }


def _is_within_any(group: int, names: Collection[int], parents: Mapping[int, int | None]) -> bool:
    current: int | None = group
    while current is not None:
        if current in names:
            return True
        current = parents[current]
    return False


def _read_available_memory() -> int:
    """The host's available memory (MemAvailable) in bytes."""
    text = process_list.read_small_file("/proc/meminfo")
    name = b"MemAvailable:"
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) << 10


@define(eq=False)
class MemoryWatcher:
    """Watches groups while :meth:`serve` runs."""

    _groups: dict[int, Group] = field(factory=dict)
    _nonempty: trio.Event = field(factory=trio.Event)  # set while there are groups

    def add(
        self,
        group: int,
        pid: int,
        limit: int,
        exceeded: Callable[[Exceeded], None],
        parent: int | None = None,
        tmpfs: Collection[int] = (),
    ) -> None:
        """Watch the namespace with this pid as PID 1. ``parent`` is the group around it, if that is watched.

        ``tmpfs`` are descriptors of file systems to count as well; the caller keeps them.
        ``exceeded`` is called once, by the task in :meth:`serve`, and must kill the group with all groups in it.
        """
        self.remove(group)
        self._groups[group] = Group(limit, exceeded, parent, process_list.root_start_times(pid), Tmpfs.of(tmpfs))
        self._nonempty.set()

    def join(self, group: int, pid: int) -> None:
        """Add a further program of a watched group, by its PID 1; it is dropped when that has ended."""
        known = self._groups.get(group)
        if known is not None:
            living = {
                root: when for root, when in known.roots.items() if process_list.root_start_times(root) == {root: when}
            }
            self._groups[group] = replace(known, roots={**living, **process_list.root_start_times(pid)})

    def change_limit(self, group: int, limit: int) -> None:
        """Give a watched group another limit, in bytes; no effect if it isn't watched."""
        if group in self._groups:
            self._groups[group] = replace(self._groups[group], limit=limit)

    def remove(self, group: int) -> None:
        """Stop watching the group; no effect if it isn't watched."""
        known = self._groups.pop(group, None)
        if known is not None:
            known.tmpfs.close()
        if not self._groups and self._nonempty.is_set():  # otherwise serve() already waits on this event
            self._nonempty = trio.Event()

    async def serve(self) -> None:
        """Watch until cancelled."""
        scanner, limiter = (
            _MemoryScanner(),
            trio.CapacityLimiter(1),
        )  # its own limiter, so it never waits for other threads
        while True:
            await self._nonempty.wait()
            try:
                found = await trio.to_thread.run_sync(
                    scanner.watch, self._groups, limiter=limiter, abandon_on_cancel=True
                )
            except (*EXHAUSTED, ValueError) as error:  # ValueError: /proc/meminfo couldn't be opened
                log.warning("the memory of agents could not be measured: %s", error)
                await trio.sleep(MIN_INTERVAL)
                continue
            for name, (group, exceeded) in found.items():
                if self._groups.get(name) is group:  # it may have been removed during the look
                    self.remove(name)
                    group.exceeded(exceeded)
