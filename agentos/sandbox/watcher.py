"""Kills whoever is over its memory limit, for hosts that have no memory cgroup for us.

One task watches all groups: a group is an agent with all that it runs, and the groups of the agents that it spawned
are in it, as control groups nest. Each process is held to twice the limit by RLIMIT_DATA besides, so that what an agent
can have beyond its limit is what its processes take between two looks. What counts is what a cgroup would count: what
its processes hold, and what lies in the agent's own tmpfs's. Memory that would be in neither, the filter refuses to an
agent that is watched: memory files and System V segments.

Not seen, and so not bounded, is memory of the kernel's: pipes, sockets, page tables.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import trio
from attrs import Factory, define, evolve, field, frozen

from . import census
from .census import Census, Memory, Process, distinct, mapped, memory
from .cgroup_values import short_size
from .errors import EXHAUSTED

log = logging.getLogger(__name__)

PULSE = 0.1  # seconds between two glances at the host's free memory: where a quarter of a limit is gone, we look
GLANCES = 10  # in one go
IDLE = 2.0  # seconds between two looks while everybody uses less than a quarter of the limit
BUSY = 0.5  # and while everybody has a quarter left; otherwise each pulse
MOST = 20  # times what a look took must pass before the next: at most 5 % of a CPU
HASTE = 4  # the same when the host's memory goes


@frozen
class Exceeded:
    """A group had more than its limit. ``found`` is bytes, ``measure`` how they were counted."""

    limit: int
    found: int
    measure: str  # PSS or RSS

    def __str__(self) -> str:
        found = short_size(self.found >> 20 << 20 or self.found)
        return f"memory limit {short_size(self.limit)} reached (watched: {self.measure} {found})"


@define(eq=False)
class Tmpfs:
    """An agent's own file systems in memory, kept open to see how full they are; for several threads."""

    _fds: list[int]
    devices: frozenset[int]
    _closing: threading.Lock = Factory(threading.Lock)

    @classmethod
    def of(cls, fds: Collection[int]) -> "Tmpfs":
        """Those of these descriptors, which stay the caller's."""
        found = cls([], frozenset(os.fstat(fd).st_dev for fd in fds))
        try:
            for fd in fds:
                found._fds.append(os.dup(fd))
        except OSError:
            found.close()
            raise
        return found

    def used(self) -> int:
        """Bytes in all of them; none once they are closed."""
        with self._closing:
            return sum((found.f_blocks - found.f_bfree) * found.f_frsize for found in map(os.fstatvfs, self._fds))

    def close(self) -> None:
        """Let go of them: whoever is just looking isn't to find another file by their numbers."""
        with self._closing:
            while self._fds:
                os.close(self._fds.pop())


@frozen
class Group:
    """An agent to be watched: PID 1 of each PID namespace that is its own, with when it was started."""

    limit: int  # bytes
    exceeded: Callable[[Exceeded], None]
    parent: int | None
    roots: Mapping[int, int]  # pid, when it was started
    tmpfs: Tmpfs


def subtree_sums(own: Mapping[int, int], parents: Mapping[int, int | None]) -> dict[int, int]:
    """What each group has together with all groups below it."""
    sums = dict.fromkeys(own, 0)
    for group, amount in own.items():
        at: int | None = group
        while at is not None:
            sums[at] += amount
            at = parents[at]
    return sums


def outermost(over: Collection[int], parents: Mapping[int, int | None]) -> set[int]:
    """Those of the groups that have none of the others around them."""

    def around(group: int) -> Iterable[int]:
        at = parents[group]
        while at is not None:
            yield at
            at = parents[at]

    return {group for group in over if not any(outer in over for outer in around(group))}


@define
class _Looker:
    """What one look after the other remembers; used by one thread at a time."""

    people: Census = Factory(Census)
    roots: frozenset[int] = frozenset()
    free: int = 0  # the host's, at the last look
    seconds: float = 0.0  # what the last look took
    last: float = float("-inf")
    fullest: float = 1.0  # the largest share of a limit that was used

    def watch(self, groups: Mapping[int, Group]) -> dict[int, tuple[Group, Exceeded]]:
        """Glance for a second, or until there's something to tell: a thread for each glance would cost more than it."""
        for _ in range(GLANCES):
            now = dict(groups)  # at once: others add and remove
            if not now:
                break
            if found := self.glance(now):
                return {name: (now[name], exceeded) for name, exceeded in found.items()}
            time.sleep(PULSE)
        return {}

    def glance(self, groups: Mapping[int, Group]) -> dict[int, Exceeded]:
        """Look if it is time: then the outermost groups over their limits."""
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
        )  # never less than what they really have, and cheap
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
        """Count exactly where it may be too much."""
        around = {name for name in groups if _any_above(name, close, parents)}
        people = {name: distinct(processes[name]) for name in around}
        counted = {name: sum(map(memory, people[name]), Memory()) for name in around}
        own = dict.fromkeys(groups, 0)
        for name in around:
            shared = counted[name].shared
            if shared and stored[name]:  # what is mapped of a tmpfs is in both
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
    """The host's memory that can be had, in bytes."""
    text, name = census.read("/proc/meminfo"), b"MemAvailable:"
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) << 10


@define(eq=False)
class MemoryWatcher:
    """Watches groups while :meth:`serve` runs."""

    _groups: dict[int, Group] = field(factory=dict)
    _some: trio.Event = field(factory=trio.Event)  # there are groups

    def add(
        self,
        group: int,
        pid: int,
        limit: int,
        exceeded: Callable[[Exceeded], None],
        parent: int | None = None,
        tmpfs: Collection[int] = (),
    ) -> None:
        """Watch the namespace whose PID 1 has this pid. ``parent`` is the group around it, if that is watched.

        ``tmpfs`` are descriptors of file systems whose contents count with it; they stay the caller's.
        ``exceeded`` is called once, by the task that serves, and has to kill the group with all groups in it.
        """
        self.remove(group)
        self._groups[group] = Group(limit, exceeded, parent, census.roots(pid), Tmpfs.of(tmpfs))
        self._some.set()

    def join(self, group: int, pid: int) -> None:
        """A further program of a watched group, by its PID 1; it is forgotten when that ends."""
        known = self._groups.get(group)
        if known is not None:
            living = {root: when for root, when in known.roots.items() if census.roots(root) == {root: when}}
            self._groups[group] = evolve(known, roots={**living, **census.roots(pid)})

    def remove(self, group: int) -> None:
        """Watch it no longer; nothing where it isn't watched."""
        known = self._groups.pop(group, None)
        if known is not None:
            known.tmpfs.close()
        if not self._groups and self._some.is_set():  # otherwise somebody waits for this one
            self._some = trio.Event()

    async def serve(self) -> None:
        """Watch until cancelled."""
        looker, turn = _Looker(), trio.CapacityLimiter(1)  # of its own: it doesn't wait behind others' threads
        while True:
            await self._some.wait()
            try:
                found = await trio.to_thread.run_sync(looker.watch, self._groups, limiter=turn, abandon_on_cancel=True)
            except (*EXHAUSTED, ValueError) as error:  # ValueError: /proc/meminfo couldn't be opened
                log.warning("the memory of agents could not be looked at: %s", error)
                await trio.sleep(PULSE)
                continue
            for name, (group, exceeded) in found.items():
                if self._groups.get(name) is group:  # it may have been removed while we looked
                    self.remove(name)
                    group.exceeded(exceeded)
