"""Waiting jails: processes that have done the common steps of a plan and wait for the rest of it.

For programs without a jail of their own, as commands in the jail of an agent, a process waits that is only cloned.

A waiting jail has new namespaces and a root with the system's files, and nothing of any agent. It is used once, by the
first plan that begins with the same steps. It is stale when the host's mount table has changed since, or a file that it
shows has been replaced. Linux kills it before any other process when memory runs out.
"""

import operator
import os
import select
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Self

import trio
from attrs import Factory, define, frozen

from agentos.sandbox.cgroups import v2
from agentos.sandbox.files.proc_files import read_file
from agentos.sandbox.sandbox import has_ended
from agentos.sandbox.steps import Step

from .handshake import NewProcess

MAX_WAITING = 2  # jails; each has 2 MiB of memory
MAX_BARE = 1  # processes that have done no steps
MIN_AVAILABLE = 0.05  # of all memory: with less, no jail waits
_MOUNT_TABLE = "/proc/self/mountinfo"

FileIds = Mapping[str, tuple[int, int]]  # device and inode by path


@frozen
class WaitingJail:
    """A process that has been sent these steps; ``files`` are the files and directories that it shows.

    Under control groups of version 2 it was born in ``group``, which has no limits yet, and no other processes.
    """

    process: NewProcess
    steps: Sequence[Step]
    files: FileIds
    group: v2.Group | None = None


@frozen
class TakenJail:
    """A jail that waits no more: its process, the steps that it has yet to do, and its group, if it has its own."""

    process: NewProcess
    rest: Sequence[Step]
    group: v2.Group | None


@define(eq=False)
class WaitingJails:
    """The waiting jails of one spawner, the oldest first. The caller ends those that it is given back."""

    jails: list[WaitingJail] = Factory(list)
    generation: int = 0  # how often all have become stale
    _mounts: "MountTable | None" = None  # opened for the first jail

    def take(self, ahead: Sequence[Step]) -> tuple[WaitingJail | None, list[WaitingJail]]:
        """Remove and return a jail that has done these steps, and the jails that are of no use any more."""
        useless = self._remove_useless()
        for jail in self.jails:
            if are_equal(jail.steps, ahead):
                self.jails.remove(jail)
                if read_file_ids(jail.files) == jail.files:
                    return jail, useless
                return None, [*useless, jail]
        return None, useless

    def add(self, jail: WaitingJail, generation: int) -> list[WaitingJail]:
        """Let a jail wait whose building began in this generation; it is returned if it has become stale since."""
        if generation != self.generation:
            return [jail]
        self.jails.append(jail)
        return []

    def take_stale(self) -> list[WaitingJail]:
        """Remove and return all, as the mount table has changed. Those that are being built are stale as well."""
        self.generation += 1
        return self.take_all()

    def take_all(self) -> list[WaitingJail]:
        """Remove and return all."""
        jails, self.jails = self.jails, []
        return jails

    def remove(self, pid: int) -> WaitingJail | None:
        """Remove and return the jail whose process has this pid, if there is one."""
        for jail in self.jails:
            if jail.process.pid == pid:
                self.jails.remove(jail)
                return jail
        return None

    def make_room(self, steps: Sequence[Step]) -> list[WaitingJail]:
        """Remove and return the oldest jails, so that one with these steps may wait. Call it before that is built."""
        if self._mounts is None:
            self._mounts = MountTable.open()
        useless = self._remove_useless()
        kind = [jail for jail in self.jails if bool(jail.steps) == bool(steps)]
        for jail in kind[: len(kind) + 1 - (MAX_WAITING if steps else MAX_BARE)]:
            self.jails.remove(jail)
            useless.append(jail)
        return useless

    def close(self) -> None:
        if self._mounts is not None:
            self._mounts.close()

    def _remove_useless(self) -> list[WaitingJail]:
        """Remove and return the jails that have ended, or all if the mount table has changed."""
        if self._mounts is not None and self._mounts.has_changed():
            return self.take_stale()
        ended = [jail for jail in self.jails if has_ended(jail.process.pidfd)]
        self.jails = [jail for jail in self.jails if jail not in ended]
        return ended


@frozen
class MountTable:
    """Notices changes of the mount table of this process. Each user needs its own: a change is reported once."""

    _file: int
    _changes: select.epoll

    @classmethod
    def open(cls) -> Self:
        changes = select.epoll()  # closes itself if the file can't be opened
        file = os.open(_MOUNT_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        changes.register(file, select.EPOLLPRI)
        return cls(file, changes)

    def has_changed(self) -> bool:
        """Whether it has changed since the last call."""
        return bool(self._changes.poll(0))

    async def wait_for_change(self) -> None:
        await trio.lowlevel.wait_readable(self._changes.fileno())
        self.has_changed()

    def close(self) -> None:
        self._changes.close()
        os.close(self._file)


def are_equal(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Compare steps with their kinds: as tuples, steps of two kinds with equal fields are equal."""
    return one == other and all(map(operator.is_, map(type, one), map(type, other)))


def read_file_ids(paths: Iterable[str]) -> FileIds:
    """Return the ids of the files and directories at these paths, as far as they exist."""
    found = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            found[path] = (status.st_dev, status.st_ino)
    return found


def is_memory_short() -> bool:
    """Whether the host has less than :data:`MIN_AVAILABLE` of its memory available; true if this can't be read."""
    try:
        text = read_file("/proc/meminfo")
    except OSError:  # too many open files: a waiting jail holds some
        return True
    rows = (row.split() for row in text.splitlines())
    kib = {name: int(value) for name, value, *_ in rows if name in ("MemTotal:", "MemAvailable:")}
    return kib["MemAvailable:"] < MIN_AVAILABLE * kib["MemTotal:"]
