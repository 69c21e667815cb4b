"""How much a workspace holds: counted by walking where it is a directory, told by its mount where it has a size.

A limit may be exceeded by what is written between two walks, and by files without a name that are mapped, but not
open any more.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from attrs import define, field, frozen

from . import census
from .census import Census, Process, hidden
from .cgroup_values import short_size
from .errors import EXHAUSTED, NO_DESCRIPTOR
from .usage import DIRECTORY, Usage, measure

log = logging.getLogger(__name__)

PULSE = 1.0  # seconds between two walks at least
MOST = 20  # times what the walks took must pass before the next: at most 5 % of a CPU
LONGEST = 5.0  # seconds, though, that nobody looks
CLOSED_WALKS = 5  # one after the other that couldn't count everything: it isn't by chance any more


@frozen
class Exceeded:
    """A workspace holds more than it may, or hides what it holds."""

    text: str

    def __str__(self) -> str:
        return f"{self.text} in its workspace"


def judge(usage: Usage, disk: int, inodes: int) -> Exceeded | None:
    """What of its limits it is over."""
    if usage.size > disk:
        return Exceeded(f"disk limit {short_size(disk)} reached")
    if usage.inodes > inodes:
        return Exceeded(f"inode limit {inodes} reached")
    return None


def nameless(device: int, processes: Iterable[Process]) -> Usage:
    """What these have open on a device without a name: no walk sees it. Blocks."""
    found = [file for file in hidden(processes) if file.device == device]
    return Usage(sum(file.size for file in found), len(found))


@frozen
class _Watched:
    directory: int  # ours to close
    disk: int
    inodes: int
    exceeded: Callable[[Exceeded], None]
    roots: Mapping[int, int]  # of PID namespaces, with when PID 1 was started


@define(eq=False)
class DiskWatcher:
    """Walks the workspaces that have no size of their own while :meth:`serve` runs."""

    _watched: dict[int, _Watched] = field(factory=dict)
    _closed: dict[int, int] = field(factory=dict)  # walks in a row that met closed directories
    _some: trio.Event = field(factory=trio.Event)

    def add(
        self, group: int, directory: int, disk: int, inodes: int, exceeded: Callable[[Exceeded], None], pid: int
    ) -> None:
        """Watch an open directory, which stays the caller's, on behalf of the namespace with this PID 1.

        ``exceeded`` is called once, by the task that serves, and has to kill the group.
        """
        self.remove(group)
        own = os.open(".", DIRECTORY, dir_fd=directory)
        self._watched[group] = _Watched(own, disk, inodes, exceeded, census.roots(pid))
        self._some.set()

    def remove(self, group: int) -> None:
        """Watch it no longer; nothing where it isn't watched."""
        watched = self._watched.pop(group, None)
        self._closed.pop(group, None)
        if watched is not None:
            os.close(watched.directory)
        if not self._watched and self._some.is_set():  # otherwise somebody waits for this one
            self._some = trio.Event()

    async def serve(self) -> None:
        """Watch until cancelled."""
        people, turn = Census(), trio.CapacityLimiter(1)
        while True:
            await self._some.wait()
            began = trio.current_time()
            watched = dict(self._watched)
            try:
                measured = await _measure_all(watched, people, turn)
            except EXHAUSTED as error:
                log.warning("workspaces could not be looked at: %s", error)
                measured = {}
            for group, usage in measured.items():
                if self._watched.get(group) is watched[group]:  # it may have been removed while we walked
                    self._decide(group, watched[group], usage)
            await trio.sleep(min(max(PULSE, MOST * (trio.current_time() - began)), LONGEST))

    def _decide(self, group: int, watched: _Watched, usage: Usage) -> None:
        exceeded = judge(usage, watched.disk, watched.inodes)
        self._closed[group] = self._closed.get(group, 0) + 1 if usage.closed else 0
        if exceeded is None and self._closed[group] >= CLOSED_WALKS:
            exceeded = Exceeded(f"disk limit {short_size(watched.disk)} can't be watched: not all can be counted")
        if exceeded is not None:
            self.remove(group)
            watched.exceeded(exceeded)


async def _measure_all(
    watched: Mapping[int, _Watched], people: Census, turn: trio.CapacityLimiter
) -> Mapping[int, Usage]:
    """One walk of each, in a thread that may go on when nobody waits for it any more: with descriptors of its own."""
    copies: dict[int, int] = {}
    box = [copies]  # who takes them out closes them: the thread, or we if it never runs

    def walk() -> dict[int, Usage]:
        mine = box.pop()
        try:
            running = people.of({group: one.roots for group, one in watched.items()})
            return {group: _measured(mine[group], one, running[group]) for group, one in watched.items()}
        finally:
            _close_all(mine)

    try:
        for group, one in watched.items():
            copies[group] = os.dup(one.directory)
        return await trio.to_thread.run_sync(walk, limiter=turn, abandon_on_cancel=True)
    finally:
        with contextlib.suppress(IndexError):
            _close_all(box.pop())


def _close_all(directories: Mapping[int, int]) -> None:
    for fd in directories.values():
        os.close(fd)


def _measured(directory: int, watched: _Watched, running: Sequence[Process]) -> Usage:
    try:
        found = measure(directory, watched.disk, watched.inodes)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        found = Usage(closed=1)  # the workspace itself was closed to us
    more = nameless(os.fstat(directory).st_dev, running)
    hiding = sum(census.is_closed(one) for one in running if one.pid not in watched.roots)
    return Usage(found.size + more.size, found.inodes + more.inodes, found.closed + hiding)


@frozen
class Image:
    """A file system of a size of its own: bytes and inodes, as statfs(2) tells them."""

    size: int
    inodes: int


def image_at(directory: int) -> Image:
    """What the file system of an open directory can hold."""
    found = os.fstatvfs(directory)
    return Image(found.f_blocks * found.f_frsize, found.f_files)


@frozen
class Tmpfs:
    """A file system in memory, as the mount table has it."""

    options: str

    @property
    def size(self) -> int | None:
        """Bytes."""
        return self._number("size")

    @property
    def inodes(self) -> int | None:
        """How many files."""
        return self._number("nr_inodes")

    def _number(self, name: str) -> int | None:
        found = dict(option.split("=", 1) for option in self.options.split(",") if "=" in option).get(name)
        if found is None:
            return None
        return int(found[:-1]) << 10 if found.endswith("k") else int(found)


def tmpfs_at(pid: int, place: str = "/workspace") -> Tmpfs | None:
    """What is mounted at a place inside, if it is a tmpfs; works for a process that we may not look into."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as lines:
        return find_tmpfs(lines, place)


def find_tmpfs(mountinfo: Iterable[str], place: str) -> Tmpfs | None:
    """The last of the lines decides: it is mounted over the others."""
    kinds = {}
    for line in mountinfo:
        before, _, after = line.rstrip("\n").partition(" - ")
        kind, _, options = after.split(" ", 2)
        kinds[before.split(" ")[4]] = Tmpfs(options) if kind == "tmpfs" else None
    return kinds.get(place)
