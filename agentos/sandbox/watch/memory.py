"""Memory watcher: kills groups over their memory limit, on hosts without a usable memory cgroup.

One task watches all groups. A group is an agent with all programs that it runs; the groups of agents that it spawned
are nested in it, as with cgroups. In addition, RLIMIT_DATA holds each process to twice the limit, so an agent exceeds
its limit at most by what its processes allocate between two looks. The watcher counts what a cgroup would count: the
memory of the processes and the contents of the agent's own tmpfs mounts. For watched agents the seccomp filter denies
memory that would be in neither: memfds and System V segments.

Kernel memory (pipes, sockets, page tables) is not counted, and so not limited.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import trio
from attrs import Factory, define, evolve, field, frozen

from agentos.sandbox.cgroups.values import format_size
from agentos.sandbox.errors import EXHAUSTED

from . import processes as process_list
from .processes import Census, Memory, Process, distinct, mapped, memory

log = logging.getLogger(__name__)

PULSE = 0.1  # seconds between two checks of the host's free memory; a drop by a quarter of a limit triggers a look
GLANCES = 10  # checks per call of the thread
IDLE = 2.0  # seconds between two looks while every group uses less than a quarter of its limit
BUSY = 0.5  # while every group has a quarter left; otherwise every pulse
MOST = 20  # times the duration of a look must pass before the next: at most 5 % of a CPU
HASTE = 4  # the same while the host's free memory drops


@frozen
class Exceeded:
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


@frozen
class Group:
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
        at: int | None = group
        while at is not None:
            sums[at] += amount
            at = parents[at]
    return sums


def outermost(over: Collection[int], parents: Mapping[int, int | None]) -> set[int]:
    """Return the groups that no other group in ``over`` contains."""

    def around(group: int) -> Iterable[int]:
        at = parents[group]
        while at is not None:
            yield at
            at = parents[at]

    return {group for group in over if not any(outer in over for outer in around(group))}


@define
class _Looker:
    """State that is kept between looks; used by one thread at a time."""

    people: Census = Factory(Census)
    roots: frozenset[int] = frozenset()
    free: int = 0  # the host's free memory at the last look, in bytes
    seconds: float = 0.0  # duration of the last look
    last: float = float("-inf")
    fullest: float = 1.0  # the largest used share of a limit

    def watch(self, groups: Mapping[int, Group]) -> dict[int, tuple[Group, Exceeded]]:
        """Check for a second, or until a group is over its limit: a thread per check would cost more than the check."""
        for _ in range(GLANCES):
            now = dict(groups)  # a copy: the event loop adds and removes groups
            if not now:
                break
            if found := self.glance(now):
                return {name: (now[name], exceeded) for name, exceeded in found.items()}
            time.sleep(PULSE)
        return {}

    def glance(self, groups: Mapping[int, Group]) -> dict[int, Exceeded]:
        """Look if a look is due; returns the outermost groups over their limits."""
        free = _free()
        now = time.monotonic()
        wait = IDLE if self.fullest < 0.25 else BUSY if self.fullest < 0.75 else PULSE
        going = self.free - free > min(group.limit for group in groups.values()) // 4
        roots = frozenset(pid for group in groups.values() for pid in group.roots)
        due = self.last + max(wait, self.seconds * MOST) - PULSE / 2
        if going or roots - self.roots:
            due = self.last + self.seconds * HASTE
        if now < due:
            return {}
        self.roots = roots
        found = self._look(groups)
        self.free, self.last, self.seconds = free, now, time.monotonic() - now
        return found

    def _look(self, groups: Mapping[int, Group]) -> dict[int, Exceeded]:
        processes = self.people.of({name: group.roots for name, group in groups.items()})
        parents = {name: group.parent if group.parent in groups else None for name, group in groups.items()}
        stored = {name: group.tmpfs.used() for name, group in groups.items()}
        most = subtree_sums(
            {name: sum(one.rss for one in processes[name]) + stored[name] for name in groups}, parents
        )  # cheap, and never less than the actual use
        self.fullest = max(amount / groups[name].limit for name, amount in most.items())
        close = {name for name, amount in most.items() if amount > groups[name].limit}
        over = self._count(groups, parents, processes, stored, close) if close else {}
        return {name: over[name] for name in outermost(over, parents)}

    def _count(
        self,
        groups: Mapping[int, Group],
        parents: Mapping[int, int | None],
        processes: Mapping[int, Sequence[Process]],
        stored: Mapping[int, int],
        close: Collection[int],
    ) -> dict[int, Exceeded]:
        """Count exactly the groups that may be over their limit, and the groups within them."""
        around = {name for name in groups if _any_above(name, close, parents)}
        people = {name: distinct(processes[name]) for name in around}
        counted = {name: sum(map(memory, people[name]), Memory()) for name in around}
        own = dict.fromkeys(groups, 0)
        for name in around:
            shared = counted[name].shared
            if shared and stored[name]:  # mapped tmpfs pages are in both figures
                shared -= min(shared, sum(mapped(one, groups[name].tmpfs.devices) for one in people[name]))
            own[name] = counted[name].own + shared + stored[name]
        sums = subtree_sums(own, parents)
        measure = "PSS" if all(one.exact for one in counted.values()) else "RSS"
        return {
            name: Exceeded(groups[name].limit, sums[name], measure) for name in close if sums[name] > groups[name].limit
        }


def _any_above(group: int, names: Collection[int], parents: Mapping[int, int | None]) -> bool:
    at: int | None = group
    while at is not None:
        if at in names:
            return True
        at = parents[at]
    return False


def _free() -> int:
    """The host's available memory (MemAvailable), in bytes."""
    text, name = process_list.read("/proc/meminfo"), b"MemAvailable:"
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) << 10


@define(eq=False)
class MemoryWatcher:
    """Watches groups while :meth:`serve` runs."""

    _groups: dict[int, Group] = field(factory=dict)
    _some: trio.Event = field(factory=trio.Event)  # set while there are groups

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
        self._groups[group] = Group(limit, exceeded, parent, process_list.roots(pid), Tmpfs.of(tmpfs))
        self._some.set()

    def join(self, group: int, pid: int) -> None:
        """Add a further program of a watched group, by its PID 1; it is dropped when that has ended."""
        known = self._groups.get(group)
        if known is not None:
            living = {root: when for root, when in known.roots.items() if process_list.roots(root) == {root: when}}
            self._groups[group] = evolve(known, roots={**living, **process_list.roots(pid)})

    def remove(self, group: int) -> None:
        """Stop watching the group; no effect if it isn't watched."""
        known = self._groups.pop(group, None)
        if known is not None:
            known.tmpfs.close()
        if not self._groups and self._some.is_set():  # otherwise serve() already waits on this event
            self._some = trio.Event()

    async def serve(self) -> None:
        """Watch until cancelled."""
        looker, turn = _Looker(), trio.CapacityLimiter(1)  # its own limiter, so it never waits for other threads
        while True:
            await self._some.wait()
            try:
                found = await trio.to_thread.run_sync(looker.watch, self._groups, limiter=turn, abandon_on_cancel=True)
            except (*EXHAUSTED, ValueError) as error:  # ValueError: /proc/meminfo couldn't be opened
                log.warning("the memory of agents could not be looked at: %s", error)
                await trio.sleep(PULSE)
                continue
            for name, (group, exceeded) in found.items():
                if self._groups.get(name) is group:  # it may have been removed during the look
                    self.remove(name)
                    group.exceeded(exceeded)
