"""Which processes live below a sandbox's PID 1, and what memory they hold: read from /proc, and blocks while it reads.

In a PID namespace whatever loses its parent becomes a child of PID 1, so that a namespace is the tree below it. Who is
whose child is in a file that everybody may read, unlike the namespaces of a process that isn't dumpable.
"""

import ctypes
import functools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from attrs import Factory, define, frozen

from agentos.sandbox.syscall_numbers import NUMBERS

PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 4  # of listing: who forks and ends meanwhile is looked for again
_TRUST = 100  # looks after which everybody is asked again
_DELETED = " (deleted)"
_KCMP = NUMBERS.get(os.uname().machine, {}).get("kcmp")
_KCMP_VM = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One line of the census. ``rss`` is bytes in memory, where what is shared with others counts in full."""

    pid: int
    name: int  # in /proc: a living thread's, where the first one has ended and seems to hold nothing
    parent: int
    started: int  # in the kernel's ticks: with the pid, who it is
    threads: int
    gone: bool  # it has ended, or its first thread has
    size: int  # bytes of address space
    rss: int

    def with_memory(self, size: int, rss: int) -> "Process":
        """The same process, somewhat later."""
        return self._replace(size=size, rss=rss)


@frozen
class Memory:
    """Bytes that processes hold together; shared memory counts once."""

    own: int = 0
    shared: int = 0
    exact: bool = True  # PSS; otherwise RSS, which is never less

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.own + other.own, self.shared + other.shared, self.exact and other.exact)


def read(path: str) -> bytes:
    """A small file of /proc; nothing where it's gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_process(pid: int) -> Process | None:
    """What /proc/PID/stat says of a process or a thread; ``None`` if there is none."""
    data = read(f"/proc/{pid}/stat")
    if not data:
        return None
    fields = data[data.rindex(b")") + 2 :].split()  # a name may have anything in it
    parent, threads, started, size, rss = (int(fields[number]) for number in (1, 17, 19, 20, 21))
    return Process(pid, pid, parent, started, threads, fields[0] in (b"Z", b"X"), size, rss * PAGE)


def _with_memory(process: Process) -> Process:
    """The process, with the name and the memory of a thread that lives."""
    if not process.gone or process.threads < 2:
        return process
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{process.pid}/task")))
    except OSError:
        return process
    for thread in threads:
        if (found := read_process(thread)) and not found.gone:
            return process._replace(name=thread, size=found.size, rss=found.rss)
    return process


def roots(pid: int) -> dict[int, int]:
    """A PID 1 with when it was started, to know it by; nothing where it has ended."""
    process = read_process(pid)
    return {pid: process.started} if process is not None else {}


@define
class Census:
    """Remembers who lives where and who is a stranger, so that a look costs little on a host with many processes."""

    _known: dict[int, Process] = Factory(dict)
    _homes: dict[int, int] = Factory(dict)  # their roots
    _strangers: set[int] = Factory(set)
    _roots: frozenset[int] = frozenset()
    _trusted: int = 0  # for how many looks

    def of(self, groups: Mapping[int, Mapping[int, int]]) -> dict[int, list[Process]]:
        """The processes of each group, given by its roots."""
        self._look(frozenset(pid for own in groups.values() for pid in own))
        group_of = {
            root: name
            for name, own in groups.items()
            for root, started in own.items()
            if root in self._known and self._known[root].started == started
        }
        found: dict[int, list[Process]] = {name: [] for name in groups}
        for pid, process in self._known.items():
            if (name := group_of.get(self._homes[pid])) is not None:
                found[name].append(process)
        return found

    def _look(self, roots: frozenset[int]) -> None:
        """Find all below the roots: in a few rounds, since who ends while we look may have left children."""
        self._trust(roots)
        known = tuple(self._known)
        seen: dict[int, Process] = {}
        for _ in range(_ROUNDS):
            listed = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
            self._strangers &= listed
            fresh = listed - self._strangers - self._known.keys()
            seen = {pid: process for pid in fresh if (process := read_process(pid))}
            self._settle(seen, roots)
            if fresh <= self._strangers | self._known.keys():
                break
        for pid in known:
            self._renew(self._known[pid], pid in listed)

    def _settle(self, seen: Mapping[int, Process], roots: Collection[int]) -> None:
        """Tell strangers from those who live here. Whose parent has ended since has another by now: asked again."""
        for pid, end in ends(seen, roots).items():
            if end in roots or end in self._known:
                self._homes[pid] = end if end in roots else self._homes[end]
            elif end in (0, 1) or end in self._strangers:
                self._strangers.add(pid)
        self._known |= {pid: _with_memory(process) for pid, process in seen.items() if pid in self._homes}

    def _renew(self, process: Process, listed: bool) -> None:
        """What it holds now, by the file that costs least; that is empty for whoever's first thread has ended."""
        there = process.name if listed else 0
        found = read(f"/proc/{there}/statm").split()
        if found and found[0] != b"0":
            size, rss = (int(pages) * PAGE for pages in found[:2])
            self._known[process.pid] = process.with_memory(size, rss)
        elif listed and (now := read_process(process.pid)):
            self._known[process.pid] = _with_memory(now)
        else:
            del self._known[process.pid], self._homes[process.pid]

    def _trust(self, roots: frozenset[int]) -> None:
        """Forget all when somebody new is to be watched, and now and then: numbers come to other processes."""
        if roots - self._roots or self._trusted == _TRUST:
            self._known.clear()
            self._homes.clear()
            self._strangers.clear()
            self._trusted = 0
        self._roots = roots
        self._trusted += 1


def ends(seen: Mapping[int, Process], roots: Collection[int]) -> dict[int, int]:
    """For each process where the way up from it ends: at the nearest root, or at the first that wasn't seen."""
    found: dict[int, int] = {}
    for pid in seen:
        path = []
        while pid in seen and pid not in roots and pid not in found:
            found[pid] = pid  # numbers are used again while we read: a circle ends here
            path.append(pid)
            pid = seen[pid].parent
        found.update(dict.fromkeys(path, found.get(pid, pid)))
    return {**found, **{pid: pid for pid in roots if pid in seen}}


def distinct(processes: Sequence[Process]) -> list[Process]:
    """Those with a memory of their own: between vfork(2) and exec a child has its parent's, and isn't more."""
    by_size: dict[int, list[Process]] = {}
    for process in processes:
        by_size.setdefault(process.size, []).append(process)
    kept = []
    for same in by_size.values():
        ordered = sorted(same, key=functools.cmp_to_key(_compare)) if len(same) > 1 else same
        kept += [one for number, one in enumerate(ordered) if number == 0 or _compare(ordered[number - 1], one)]
    return kept


def _compare(one: Process, other: Process) -> int:
    """Zero if both have the same memory, otherwise their order in the kernel; a guess where it doesn't tell us."""
    if _KCMP is not None:
        order: int = _libc.syscall(_KCMP, one.name, other.name, _KCMP_VM, 0, 0)
        if 0 <= order <= 2:
            return (0, -1, 1)[order]
    if one.rss == other.rss and (one.parent == other.pid or other.parent == one.pid):
        return 0
    return -1 if one.pid < other.pid else 1


def memory(process: Process) -> Memory:
    """What a process holds: its PSS, which shares among all that map a page; its RSS where we may not know that."""
    try:
        with open(f"/proc/{process.name}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()[1:]
    except PermissionError:
        return Memory(process.rss, exact=False)
    except OSError:  # it has ended
        return Memory()
    kilobytes = {line.split(b":")[0]: int(line.split()[1]) for line in lines}
    shared = kilobytes.get(b"Pss_Shmem", 0)
    return Memory((kilobytes.get(b"Pss", 0) - shared) << 10, shared << 10)


def mapped(process: Process, devices: Collection[int]) -> int:
    """What a process has mapped of files on these devices, in bytes: its share, as PSS, without what it changed."""
    try:
        with open(f"/proc/{process.name}/smaps", "rb") as file:
            lines = [line.split() for line in file]
    except OSError:  # it has ended, or we may not know
        return 0
    total = kilobytes = 0
    counts = False
    for fields in lines:
        if not fields[0].endswith(b":"):  # the first line of a mapping: addresses, permissions, offset, device
            major, minor = (int(number, 16) for number in fields[3].split(b":"))
            counts = os.makedev(major, minor) in devices
        elif counts and fields[0] == b"Pss:":
            kilobytes = int(fields[1])
        elif counts and fields[0] == b"Anonymous:":
            total += max(0, kilobytes - int(fields[1]))
    return total << 10


def is_closed(process: Process) -> bool:
    """Whether a living process doesn't show us its open files: without root, those of one that isn't dumpable."""
    if process.gone and process.name == process.pid:
        return False
    try:
        os.close(os.open(f"/proc/{process.name}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:  # it has ended
        pass
    return False


@frozen
class Hidden:
    """A file that has no name any more, or never had one, and lives while somebody has it open."""

    device: int
    inode: int
    size: int  # bytes of its blocks


def hidden(processes: Iterable[Process]) -> Iterator[Hidden]:
    """Nameless files that these processes have open, each once; nothing of a process that we may not look into."""
    seen: set[tuple[int, int]] = set()
    for process in processes:
        try:
            names = os.listdir(f"/proc/{process.name}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{process.name}/fd/{name}"
            try:
                target = os.readlink(path)
                if not target.endswith(_DELETED):
                    continue
                found = os.stat(path)
            except OSError:
                continue
            if found.st_nlink == 0 and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield Hidden(found.st_dev, found.st_ino, found.st_blocks * 512)
