"""Find the processes below a sandbox's PID 1 and their memory, by reading /proc. Blocks while it reads.

In a PID namespace an orphaned process becomes a child of PID 1, so a namespace is the process tree below its PID 1.
The parent pid is in a file that any user may read, unlike the namespace links of a process that isn't dumpable.
"""

import ctypes
import functools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from attrs import Factory, define
from msgspec import Struct

from agentos.sandbox.filters.syscall_numbers import NUMBERS

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MAX_LIST_ROUNDS = 4  # of listing /proc: processes that fork and end meanwhile are looked up again
_MAX_CACHED_SCANS = 100  # looks after which the cache is dropped and every process is read again
_DELETED_SUFFIX = " (deleted)"
_KCMP = NUMBERS.get(os.uname().machine, {}).get("kcmp")
_KCMP_VM = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One process. ``rss`` is resident bytes; shared memory counts in full."""

    pid: int
    name: int  # pid or tid under /proc: a living thread's if the first thread has ended and shows no memory
    parent: int
    started: int  # start time in clock ticks; with the pid it identifies the process
    threads: int
    ended: bool  # the process or its first thread has ended
    size: int  # bytes of address space
    rss: int
    beyond: int = 0  # bytes of page tables and of own memory that is swapped out, which no resident figure has

    def with_memory(self, size: int, rss: int) -> "Process":
        """Return the same process with newer memory figures."""
        return self._replace(size=size, rss=rss)


class Memory(Struct, frozen=True):
    """Bytes that processes hold together; shared memory counts once."""

    own: int = 0
    shared: int = 0
    exact: bool = True  # PSS; otherwise RSS, which is never less than PSS

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.own + other.own, self.shared + other.shared, self.exact and other.exact)


def read_small_file(path: str) -> bytes:
    """Read a small file of /proc; empty if it can't be opened or read."""
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
    """Parse /proc/PID/stat of a process or a thread; ``None`` if there is none."""
    data = read_small_file(f"/proc/{pid}/stat")
    if not data:
        return None
    fields = data[data.rindex(b")") + 2 :].split()  # the command name may contain any byte
    parent, threads, started, size, rss = (int(fields[number]) for number in (1, 17, 19, 20, 21))
    return Process(pid, pid, parent, started, threads, fields[0] in (b"Z", b"X"), size, rss * PAGE_SIZE)


def read_beyond(pid: int) -> tuple[int, int]:
    """Bytes of page tables, and of anonymous memory that is swapped out, of a process; 0 if it has ended."""
    found = {b"VmPTE": 0, b"VmSwap": 0}
    for line in read_small_file(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        if name in found:
            found[name] = int(value.split()[0]) << 10
    return found[b"VmPTE"], found[b"VmSwap"]


def _with_beyond(process: Process) -> Process:
    """Return the process with its page tables, which may be several times its address space: three for a lone page."""
    return process._replace(beyond=sum(read_beyond(process.name)))


def _with_memory(process: Process) -> Process:
    """Return the process, with name and memory of a living thread if the first thread has ended."""
    if not process.ended or process.threads < 2:
        return process
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{process.pid}/task")))
    except OSError:
        return process
    for thread in threads:
        if (found := read_process(thread)) and not found.ended:
            return process._replace(name=thread, size=found.size, rss=found.rss)
    return process


def root_start_times(pid: int) -> dict[int, int]:
    """Map the pid of a PID 1 to its start time, which identifies it; empty if it has ended."""
    process = read_process(pid)
    return {pid: process.started} if process is not None else {}


@define
class ProcessCache:
    """Caches which processes belong to which root and which belong to none, so a look is cheap on a busy host."""

    _known: dict[int, Process] = Factory(dict)
    _roots_by_pid: dict[int, int] = Factory(dict)  # pid to root
    _unrelated: set[int] = Factory(set)
    _roots: frozenset[int] = frozenset()
    _cached_scans: int = 0  # looks since the cache was dropped

    def list_by_group(self, groups: Mapping[int, Mapping[int, int]]) -> dict[int, list[Process]]:
        """Return the processes of each group; a group is given by its roots (pid and start time)."""
        self._scan(frozenset(pid for own in groups.values() for pid in own))
        group_of = {
            root: name
            for name, own in groups.items()
            for root, started in own.items()
            if root in self._known and self._known[root].started == started
        }
        found: dict[int, list[Process]] = {name: [] for name in groups}
        for pid, process in self._known.items():
            if (name := group_of.get(self._roots_by_pid[pid])) is not None:
                found[name].append(process)
        return found

    def _scan(self, roots: frozenset[int]) -> None:
        """Find all processes below the roots. Takes a few rounds: a process that ends meanwhile may leave children."""
        self._expire_cache(roots)
        known = tuple(self._known)
        seen: dict[int, Process] = {}
        for _ in range(_MAX_LIST_ROUNDS):
            listed = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
            self._unrelated &= listed
            fresh = listed - self._unrelated - self._known.keys()
            seen = {pid: process for pid in fresh if (process := read_process(pid))}
            self._classify(seen, roots)
            if fresh <= self._unrelated | self._known.keys():
                break
        for pid in known:
            self._refresh(self._known[pid], pid in listed)

    def _classify(self, seen: Mapping[int, Process], roots: Collection[int]) -> None:
        """Classify new processes as below a root or unrelated.

        A process with a parent that has ended is read again in the next round: it has a new parent by then.
        """
        for pid, end in find_ancestors(seen, roots).items():
            if end in roots or end in self._known:
                self._roots_by_pid[pid] = end if end in roots else self._roots_by_pid[end]
            elif end in (0, 1) or end in self._unrelated:
                self._unrelated.add(pid)
        self._known |= {
            pid: _with_beyond(_with_memory(process)) for pid, process in seen.items() if pid in self._roots_by_pid
        }

    def _refresh(self, process: Process, listed: bool) -> None:
        """Refresh the memory figures from statm, the cheapest file; it is empty if the first thread has ended."""
        there = process.name if listed else 0
        found = read_small_file(f"/proc/{there}/statm").split()
        if found and found[0] != b"0":
            size, rss = (int(pages) * PAGE_SIZE for pages in found[:2])
            self._known[process.pid] = _with_beyond(process.with_memory(size, rss))
        elif listed and (now := read_process(process.pid)):
            self._known[process.pid] = _with_beyond(_with_memory(now))
        else:
            del self._known[process.pid], self._roots_by_pid[process.pid]

    def _expire_cache(self, roots: frozenset[int]) -> None:
        """Drop the cache if there is a new root, and after every 100 looks, because pids are reused."""
        if roots - self._roots or self._cached_scans == _MAX_CACHED_SCANS:
            self._known.clear()
            self._roots_by_pid.clear()
            self._unrelated.clear()
            self._cached_scans = 0
        self._roots = roots
        self._cached_scans += 1


def find_ancestors(seen: Mapping[int, Process], roots: Collection[int]) -> dict[int, int]:
    """For each process, follow the parents up: to the nearest root, or to the first process that wasn't seen."""
    found: dict[int, int] = {}
    for pid in seen:
        path = []
        while pid in seen and pid not in roots and pid not in found:
            found[pid] = pid  # pids are reused while we read: this ends a cycle
            path.append(pid)
            pid = seen[pid].parent
        found.update(dict.fromkeys(path, found.get(pid, pid)))
    return {**found, **{pid: pid for pid in roots if pid in seen}}


def distinct_memory(processes: Sequence[Process]) -> list[Process]:
    """Return the processes with distinct memory: between vfork(2) and exec a child shares its parent's."""
    by_size: dict[int, list[Process]] = {}
    for process in processes:
        by_size.setdefault(process.size, []).append(process)
    kept = []
    for same in by_size.values():
        ordered = sorted(same, key=functools.cmp_to_key(_compare_memory)) if len(same) > 1 else same
        kept += [one for number, one in enumerate(ordered) if number == 0 or _compare_memory(ordered[number - 1], one)]
    return kept


def _compare_memory(one: Process, other: Process) -> int:
    """Compare two processes by memory: 0 if shared, else the kernel's kcmp(2) order, or a guess if kcmp is refused."""
    if _KCMP is not None:
        order: int = _libc.syscall(_KCMP, one.name, other.name, _KCMP_VM, 0, 0)
        if 0 <= order <= 2:
            return (0, -1, 1)[order]
    if one.rss == other.rss and (one.parent == other.pid or other.parent == one.pid):
        return 0
    return -1 if one.pid < other.pid else 1


def read_memory(process: Process) -> Memory:
    """Return the memory of a process: PSS, which divides a page among the processes that map it; RSS if denied.

    Page tables and swapped-out pages are added.
    """
    try:
        with open(f"/proc/{process.name}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()[1:]
    except PermissionError:
        return Memory(process.rss + process.beyond, exact=False)
    except OSError:  # the process has ended
        return Memory()
    kilobytes = {line.split(b":")[0]: int(line.split()[1]) for line in lines}
    shared = kilobytes.get(b"Pss_Shmem", 0)
    own = kilobytes.get(b"Pss", 0) - shared + kilobytes.get(b"SwapPss", 0)
    tables, _ = read_beyond(process.name) if process.beyond else (0, 0)
    return Memory((own << 10) + tables, shared << 10)


def read_mapped(process: Process, devices: Collection[int]) -> int:
    """Bytes of files on these devices that the process has mapped: its share (PSS), without pages that it changed."""
    try:
        with open(f"/proc/{process.name}/smaps", "rb") as file:
            lines = [line.split() for line in file]
    except OSError:  # the process has ended, or access is denied
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


def count_time_and_threads(living: Iterable[Process]) -> tuple[float | None, int | None]:
    """CPU seconds of these processes and of the children that they have waited for; and how many threads they have.

    ``None`` if none of them can be read.
    """
    ticks, threads = [], 0
    for process in living:
        if data := read_small_file(f"/proc/{process.pid}/stat"):
            fields = data[data.rindex(b")") + 2 :].split()
            ticks.append(sum(map(int, fields[11:15])))  # utime stime cutime cstime
            threads += int(fields[17])
    return (sum(ticks) / TICKS_PER_SECOND, threads) if ticks else (None, None)


def denies_access(process: Process) -> bool:
    """Whether a living process denies access to its open files: without root, one that isn't dumpable does."""
    if process.ended and process.name == process.pid:
        return False
    try:
        os.close(os.open(f"/proc/{process.name}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:  # the process has ended
        pass
    return False


class UnlinkedFile(Struct, frozen=True):
    """An open file without a name (unlinked, or never linked); it exists until the last close."""

    device: int
    inode: int
    size: int  # bytes of its blocks


def list_unlinked_files(processes: Iterable[Process]) -> Iterator[UnlinkedFile]:
    """Yield the unlinked files that these processes have open, each once. Skips processes that deny access."""
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
                if not target.endswith(_DELETED_SUFFIX):
                    continue
                found = os.stat(path)
            except OSError:
                continue
            if found.st_nlink == 0 and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield UnlinkedFile(found.st_dev, found.st_ino, found.st_blocks * 512)
