"""Disk usage of workspaces: directories are counted by walking them; tmpfs and image mounts have a fixed size.

A watched limit may be exceeded by data written between two walks, and by unlinked files that are mapped but no longer
open.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from attrs import define, field
from msgspec import Struct

from agentos.sandbox.cgroups.values import format_size
from agentos.sandbox.errors import EXHAUSTED, NO_DESCRIPTOR
from agentos.sandbox.files.proc_files import read_file

from . import processes as process_list
from .processes import Process, ProcessCache, list_unlinked_files
from .tree_usage import DIRECTORY_FLAGS, Usage, measure_tree

log = logging.getLogger(__name__)

MIN_INTERVAL = 1.0  # minimum seconds between two walks
INTERVAL_FACTOR = 20  # times the duration of the walks must pass before the next: at most 5 % of a CPU
MAX_INTERVAL = 5.0  # maximum seconds between two walks
MAX_CLOSED_WALKS = 5  # consecutive walks that couldn't count everything: no longer by chance


class Exceeded(Struct, frozen=True):
    """A workspace exceeds a limit, or hides its contents from the count."""

    text: str

    def __str__(self) -> str:
        return f"{self.text} in its workspace"


def exceeded_limit(usage: Usage, disk: int, inodes: int) -> Exceeded | None:
    """Return which limit is exceeded; ``None`` if none is."""
    if usage.size > disk:
        return Exceeded(f"disk limit {format_size(disk)} reached")
    if usage.inodes > inodes:
        return Exceeded(f"inode limit {inodes} reached")
    return None


def measure_unlinked(device: int, processes: Iterable[Process]) -> Usage:
    """Measure the unlinked files on a device that these processes have open; a walk doesn't see them. Blocks."""
    found = [file for file in list_unlinked_files(processes) if file.device == device]
    return Usage(sum(file.size for file in found), len(found))


class _WatchedWorkspace(Struct, frozen=True):
    directory: int  # closed by us
    disk: int
    inodes: int
    exceeded: Callable[[Exceeded], None]
    roots: Mapping[int, int]  # PID 1 of each PID namespace, with its start time


@define(eq=False)
class DiskWatcher:
    """Walks the workspaces without a fixed size while :meth:`serve` runs."""

    sizes: dict[int, int] = field(factory=dict)  # bytes by group, as of the last walk
    _watched: dict[int, _WatchedWorkspace] = field(factory=dict)
    _closed: dict[int, int] = field(factory=dict)  # consecutive walks that met unreadable directories
    _nonempty: trio.Event = field(factory=trio.Event)

    def add(
        self, group: int, directory: int, disk: int, inodes: int, exceeded: Callable[[Exceeded], None], pid: int
    ) -> None:
        """Watch an open directory, which the caller keeps, for the namespace with this PID 1.

        ``exceeded`` is called once, by the task in :meth:`serve`, and must kill the group.
        """
        self.remove(group)
        own = os.open(".", DIRECTORY_FLAGS, dir_fd=directory)
        self._watched[group] = _WatchedWorkspace(own, disk, inodes, exceeded, process_list.root_start_times(pid))
        self._nonempty.set()

    def remove(self, group: int) -> None:
        """Stop watching the group; no effect if it isn't watched."""
        watched = self._watched.pop(group, None)
        self._closed.pop(group, None)
        self.sizes.pop(group, None)
        if watched is not None:
            os.close(watched.directory)
        if not self._watched and self._nonempty.is_set():  # otherwise serve() already waits on this event
            self._nonempty = trio.Event()

    async def serve(self) -> None:
        """Watch until cancelled."""
        cache, limiter = ProcessCache(), trio.CapacityLimiter(1)
        while True:
            await self._nonempty.wait()
            began = trio.current_time()
            watched = dict(self._watched)
            try:
                measured = await _measure_all(watched, cache, limiter)
            except EXHAUSTED as error:
                log.warning("workspaces could not be measured: %s", error)
                measured = {}
            for group, usage in measured.items():
                if self._watched.get(group) is watched[group]:  # it may have been removed during the walk
                    self._check_usage(group, watched[group], usage)
            await trio.sleep(min(max(MIN_INTERVAL, INTERVAL_FACTOR * (trio.current_time() - began)), MAX_INTERVAL))

    def _check_usage(self, group: int, watched: _WatchedWorkspace, usage: Usage) -> None:
        self.sizes[group] = usage.size
        exceeded = exceeded_limit(usage, watched.disk, watched.inodes)
        self._closed[group] = self._closed.get(group, 0) + 1 if usage.closed else 0
        if exceeded is None and self._closed[group] >= MAX_CLOSED_WALKS:
            exceeded = Exceeded(
                f"disk limit {format_size(watched.disk)} can't be enforced: not all of it can be counted"
            )
        if exceeded is not None:
            self.remove(group)
            watched.exceeded(exceeded)


async def _measure_all(
    watched: Mapping[int, _WatchedWorkspace], cache: ProcessCache, limiter: trio.CapacityLimiter
) -> Mapping[int, Usage]:
    """Walk each directory once, in a thread that may outlive a cancelled caller: it has its own descriptors."""
    copies: dict[int, int] = {}
    box = [copies]  # the side that pops the copies closes them: the thread, or this task if the thread never ran

    def walk() -> dict[int, Usage]:
        mine = box.pop()
        try:
            running = cache.list_by_group({group: one.roots for group, one in watched.items()})
            return {group: _measure_one(mine[group], one, running[group]) for group, one in watched.items()}
        finally:
            _close_all(mine)

    try:
        for group, one in watched.items():
            copies[group] = os.dup(one.directory)
        return await trio.to_thread.run_sync(walk, limiter=limiter, abandon_on_cancel=True)
    finally:
        with contextlib.suppress(IndexError):
            _close_all(box.pop())


def _close_all(directories: Mapping[int, int]) -> None:
    for fd in directories.values():
        os.close(fd)


def _measure_one(directory: int, watched: _WatchedWorkspace, running: Sequence[Process]) -> Usage:
    try:
        found = measure_tree(directory, watched.disk, watched.inodes)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        found = Usage(closed=1)  # the workspace itself can't be read
    more = measure_unlinked(os.fstat(directory).st_dev, running)
    hiding = sum(process_list.denies_access(one) for one in running if one.pid not in watched.roots)
    return Usage(found.size + more.size, found.inodes + more.inodes, found.closed + hiding)


class Image(Struct, frozen=True):
    """Size of a file system in bytes and inodes, as reported by statfs(2)."""

    size: int
    inodes: int


def read_image(directory: int) -> Image:
    """Return the capacity of the file system of an open directory."""
    found = os.fstatvfs(directory)
    return Image(found.f_blocks * found.f_frsize, found.f_files)


class Tmpfs(Struct, frozen=True):
    """A tmpfs mount, as in the mount table."""

    options: str

    @property
    def size(self) -> int | None:
        """Bytes."""
        return self._read_option("size")

    @property
    def inodes(self) -> int | None:
        """Maximum number of files."""
        return self._read_option("nr_inodes")

    def _read_option(self, name: str) -> int | None:
        found = dict(option.split("=", 1) for option in self.options.split(",") if "=" in option).get(name)
        if found is None:
            return None
        return int(found[:-1]) << 10 if found.endswith("k") else int(found)


def read_tmpfs(pid: int, path: str = "/workspace") -> Tmpfs | None:
    """Return the mount at a path inside the sandbox if it is a tmpfs; works for processes that aren't dumpable."""
    return find_tmpfs(read_file(f"/proc/{pid}/mountinfo").split("\n"), path)


def find_tmpfs(mountinfo: Iterable[str], path: str) -> Tmpfs | None:
    """Return the topmost mount at a path if it is a tmpfs: the last line is mounted over the others."""
    found = None
    for line in mountinfo:
        if f" {path} " not in line:  # saves most of the time: a jail has forty mounts
            continue
        before, _, after = line.rstrip("\n").partition(" - ")
        kind, _, options = after.split(" ", 2)
        if before.split(" ")[4] == path:
            found = Tmpfs(options) if kind == "tmpfs" else None
    return found
