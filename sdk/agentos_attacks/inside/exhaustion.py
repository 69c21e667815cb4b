"""Attacks that exhaust shared resources. Each attempt stops by itself, a little above its limit."""

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from .frame import Check, Result, Targets, any_of, blocked, call, escaped, libc, not_applicable

MIB = 1 << 20
FILE_MIB = 8  # MiB per file
DIRECTORIES = ("/workspace", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev", "/run/lock", "/dev/mqueue")
MAX_INSTANCES = 64  # of inotify; Linux allows 128 per user


def _repeat(most: int, attempt: Callable[[int], object]) -> tuple[int, str]:
    """How many attempts succeeded, and the error that stopped them."""
    for number in range(most):
        try:
            attempt(number)
        except (OSError, RuntimeError, MemoryError) as error:
            return number, str(error)
    return most, "nothing"


def fork_bomb(targets: Targets) -> Result:
    most = targets["limits"]["max_pids"]
    children: list[int] = []

    def fork(_: int) -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)

    try:
        made, why = _repeat(min(300, 3 * most), fork)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return escaped(f"{made} children") if made > most else blocked(f"{made} children: {why}")


def threads(targets: Targets) -> Result:
    most, done = targets["limits"]["max_pids"], threading.Event()
    threading.stack_size(64 << 10)

    def start(_: int) -> None:
        threading.Thread(target=done.wait, daemon=True).start()

    made, why = _repeat(3 * most, start)
    done.set()
    return escaped(f"{made} threads") if made > most else blocked(f"{made} threads: {why}")


def fd_exhaustion(targets: Targets) -> Result:
    made, why = _repeat(5000, lambda _: os.dup(0))
    return escaped(f"{made} descriptors") if made > targets["limits"]["open_files"] else blocked(f"{made}: {why}")


def memory_bomb(targets: Targets) -> Result:
    """One process allocates twice the limit."""
    return _fill(2 * targets["limits"]["memory"], targets)


def _fill(size: int, targets: Targets) -> Result:
    kept = []

    def more(_: int) -> None:
        kept.append(b"x" * MIB)

    made, why = _repeat(size // MIB + 64, more)
    limit = targets["limits"]["memory"]
    if made * MIB > limit:
        time.sleep(6)  # long enough for the watcher's next round
    return escaped(f"{made} MiB") if made * MIB > limit else blocked(f"{made} MiB: {why or 'MemoryError'}")


def memory_of_many(targets: Targets) -> Result:
    """Eight processes, half the limit each: a limit per process doesn't stop them."""
    limit = targets["limits"]["memory"]
    read, write = os.pipe()
    pids = []
    for _process in range(8):
        pid = os.fork()
        if pid == 0:
            kept = b"x" * (limit // 2)
            os.write(write, b"full")
            signal.pause()
            del kept
        pids.append(pid)
    os.close(write)
    time.sleep(2)
    living = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
    os.set_blocking(read, False)
    try:
        said = len(os.read(read, 64)) // 4
    except BlockingIOError:
        said = 0
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    held = min(len(living), said)
    return escaped(f"{held} times half the limit") if held > 2 else blocked(f"{held} of 8 got their half")


def memory_in_files(targets: Targets) -> Result:
    """Memory files that no process maps."""
    files: list[int] = []

    def more(number: int) -> None:
        if number % FILE_MIB == 0:
            files.append(os.memfd_create(f"hoard {number}"))
        if os.write(files[-1], bytes(MIB)) != MIB:
            raise OSError("not all was written")

    return _allocate_twice_the_limit(targets, more)


def memory_in_flight(targets: Targets) -> Result:
    """Memory files that no process has open: they are in flight in a socket."""
    files: list[int] = []
    one, _other = socket.socketpair()

    def more(number: int) -> None:
        if number % FILE_MIB == 0:
            files.append(os.memfd_create(f"hoard {number}"))
        if os.write(files[-1], bytes(MIB)) != MIB:
            raise OSError("not all was written")
        if number % FILE_MIB == FILE_MIB - 1:
            socket.send_fds(one, [b"x"], files)
            os.close(files.pop())

    return _allocate_twice_the_limit(targets, more)


def _allocate_twice_the_limit(targets: Targets, more: Callable[[int], object]) -> Result:
    """Allocate twice the limit, MiB by MiB."""
    made, why = _repeat(2 * targets["limits"]["memory"] // MIB, more)
    time.sleep(6)  # long enough for the watcher's next round
    limit = targets["limits"]["memory"]
    return escaped(f"{made} MiB in memory files") if made * MIB > limit else blocked(f"{made} MiB: {why}")


def memory_in_hidden_files(targets: Targets) -> Result:
    """The same, by a process that isn't dumpable: only root may list its descriptors."""
    libc("prctl", 4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    return memory_in_files(targets)


def memory_in_segments(targets: Targets) -> Result:
    """System V segments that are no longer attached."""
    attach = ctypes.CDLL(None, use_errno=True).shmat
    attach.restype = ctypes.c_void_p

    def more(_: int) -> None:
        segment = libc("shmget", 0, 8 * MIB, 0o1600)
        at = attach(segment, None, 0)
        if at in (None, ctypes.c_void_p(-1).value):
            raise OSError("not attached")
        ctypes.memset(at, 1, 8 * MIB)
        ctypes.CDLL(None).shmdt(ctypes.c_void_p(at))

    made, why = _repeat(2 * targets["limits"]["memory"] // (8 * MIB), more)
    time.sleep(1)
    limit = targets["limits"]["memory"]
    return escaped(f"{8 * made} MiB of segments") if 8 * made * MIB > limit else blocked(f"{8 * made} MiB: {why}")


def _hold_pages_without(mapping: mmap.mmap) -> None:
    """Write each page, and take all out of this process' page tables: a shared mapping's pages stay."""
    for page in range(0, len(mapping), mmap.PAGESIZE):
        mapping[page] = 1
    mapping.madvise(mmap.MADV_DONTNEED)


def memory_in_mappings(targets: Targets) -> Result:
    """Shared mappings of nothing and of /dev/zero: their pages stay when no page table has them."""
    kept: list[mmap.mmap] = []

    def share_nothing(_: int) -> None:
        kept.append(mmap.mmap(-1, 8 * MIB))
        _hold_pages_without(kept[-1])

    def share_zero(_: int) -> None:
        fd = os.open("/dev/zero", os.O_RDWR)
        try:
            kept.append(mmap.mmap(fd, 8 * MIB))
        finally:
            os.close(fd)
        _hold_pages_without(kept[-1])

    most = 2 * targets["limits"]["memory"] // (8 * MIB)
    found = {"anonymous": _repeat(most, share_nothing), "/dev/zero": _repeat(most, share_zero)}
    time.sleep(6)  # long enough for the watcher's next round
    made = sum(number for number, _ in found.values()) * 8
    said = f"{made} MiB, {', '.join(f'{name}: {why}' for name, (_, why) in found.items())}"
    return escaped(said) if made * MIB > targets["limits"]["memory"] else blocked(said)


def memory_in_pipes(targets: Targets) -> Result:
    """Pages that a pipe alone has: of each huge page one byte is given to it, and the mapping is removed."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return not_applicable("this Python knows no huge pages")
    kept: list[int] = []

    def more(_: int) -> None:
        read, write = os.pipe()
        kept.extend((read, write))
        with mmap.mmap(-1, 18 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mine:
            mine.madvise(mmap.MADV_HUGEPAGE)
            mine[:] = bytes([1]) * len(mine)
            start = ctypes.addressof(found := ctypes.c_char.from_buffer(mine))
            del found
            for page in range(-(-start // (2 * MIB)), (start + len(mine)) // (2 * MIB)):
                call("vmsplice", write, struct.pack("=QQ", page * 2 * MIB, 1), 1, 0)

    made, why = _repeat(
        min(targets["limits"]["open_files"] // 2 - 8, 2 * targets["limits"]["memory"] // (16 * MIB)), more
    )
    time.sleep(6)  # long enough for the watcher's next round
    held = 16 * made
    return escaped(f"up to {held} MiB") if held * MIB > targets["limits"]["memory"] else blocked(f"{held} MiB: {why}")


def memory_in_page_tables(targets: Targets) -> Result:
    """Address space that is only read is no memory of its own, but each 2 MiB of it take a page of page tables."""
    size = 2 * targets["limits"]["memory"] // mmap.PAGESIZE * 2 * MIB
    try:
        wide = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    except (OSError, OverflowError) as error:
        return blocked(str(error))
    for place in range(0, size, 2 * MIB):
        wide[place]
    time.sleep(6)  # long enough for the watcher's next round
    return escaped(f"page tables of {size >> 30} GiB")


def _writable_directories() -> Iterator[str]:
    for place in dict.fromkeys((*DIRECTORIES, os.getcwd())):
        if os.path.isdir(place) and os.access(place, os.W_OK):
            yield place


def disk_fill(targets: Targets) -> Result:
    """Many files, so that the limit on file size doesn't stop it."""
    limits, found = targets["limits"], []
    for place in _writable_directories():
        most = max(limits["disk"], limits["tmp"])
        names: list[str] = []

        def more(number: int, place: str = place, names: list[str] = names) -> None:
            names.append(f"{place}/fill-{os.getpid()}-{number}")
            fd = os.open(names[-1], os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(fd, 0, MIB)
            finally:
                os.close(fd)

        made, why = _repeat(2 * most // MIB, more)
        for name in names:
            os.unlink(name)
        found.append((place, made, made * MIB > most, why))
    too_much = [f"{place}: {made} MiB" for place, made, over, _ in found if over]
    return (
        escaped("; ".join(too_much))
        if too_much
        else blocked(", ".join(f"{place} {made} MiB" for place, made, *_ in found))
    )


def _touch(directory: str, number: int) -> None:
    os.close(os.open(f"{directory}/{number}", os.O_CREAT))


def inode_flood(targets: Targets) -> Result:
    limit, found = targets["limits"]["inodes"], {}
    for place in _writable_directories():
        top = f"{place}/flood-{os.getpid()}"
        os.mkdir(top)
        made, _ = _repeat(2 * limit, partial(_touch, top))
        for name in os.listdir(top):
            os.unlink(f"{top}/{name}")
        os.rmdir(top)
        found[place] = made
    too_many = {place: made for place, made in found.items() if made > limit}
    return (
        escaped(str(too_many)) if too_many else blocked(", ".join(f"{place} {made}" for place, made in found.items()))
    )


def cpu_hog(targets: Targets) -> Result:
    """One process per CPU; measures the CPU time that they get in two seconds."""
    children = []
    start = time.monotonic()
    for _cpu in range(os.cpu_count() or 1):
        pid = os.fork()
        if pid == 0:
            while True:
                pass
        children.append(pid)
    time.sleep(2)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    share = (used.ru_utime + used.ru_stime) / (time.monotonic() - start)
    said = f"{share:.0%} of a CPU"
    return escaped(said) if share > 2 * targets["limits"]["cpu"] else blocked(said)


def sparse_file(targets: Targets) -> Result:
    def stretch(place: str) -> str:
        path = f"{place}/sparse-{os.getpid()}"
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            os.ftruncate(fd, 1 << 40)
        finally:
            os.close(fd)
            os.unlink(path)
        return "1 TiB"

    return any_of((place, partial(stretch, place)) for place in _writable_directories())


def inotify_instances(_: Targets) -> Result:
    """Each instance also counts for the host user that made the sandbox: using all of them leaves that user none."""
    made, why = _repeat(200, lambda _: call("inotify_init1", 0))
    return escaped(f"{made} instances") if made > MAX_INSTANCES else blocked(f"{made}: {why}")


def queued_signals(_: Targets) -> Result:
    """Blocked real-time signals use kernel memory, and also count for the user that made the sandbox."""
    number = signal.SIGRTMIN + 5
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    info = struct.pack("=iii4xii", number, 0, -1, os.getpid(), os.getuid()).ljust(128, b"\0")
    made, why = _repeat(5000, lambda _: call("rt_sigqueueinfo", os.getpid(), int(number), info))
    return escaped(f"{made} signals") if made > 1024 else blocked(f"{made}: {why}")


def pipe_buffers(_: Targets) -> Result:
    """Pipes of 1 MiB each; Linux allows 64 MiB per user, then one page per pipe."""

    def make(_: int) -> None:
        read, _write = os.pipe()
        fcntl.fcntl(read, 1031, MIB)  # F_SETPIPE_SZ

    made, why = _repeat(200, make)
    return escaped(f"{made} MiB") if made > 64 else blocked(f"{made} MiB: {why}")


def message_queues(_: Targets) -> Result:
    attributes = struct.pack("=8q", 0, 10, 8192, 0, 0, 0, 0, 0)
    flags = os.O_CREAT | os.O_RDWR
    make = lambda number: call("mq_open", f"queue{number}".encode(), flags, 0o600, attributes)  # noqa: E731
    made, why = _repeat(64, make)
    return escaped(f"{made} queues of 80 KiB") if made > 20 else blocked(f"{made} queues: {why}")


def locked_pages(_: Targets) -> Result:
    """Pages locked into memory by MAP_LOCKED."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return not_applicable("no anonymous mappings")

    def lock() -> str:
        mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)
        return "locked"

    return any_of([("MAP_LOCKED", lock)])


CHECKS = (
    Check("dos", fork_bomb, "three times as many children as allowed", "pids.max; RLIMIT_NPROC"),
    Check("dos", memory_bomb, "twice the memory, in one process", "memory.max; the watcher; RLIMIT_DATA"),
    Check("dos", fd_exhaustion, "5000 descriptors", "RLIMIT_NOFILE"),
    Check("dos", disk_fill, "twice the size of each writable place", "sized tmpfs"),
    Check("dos", inode_flood, "twice the files of each writable place", "nr_inodes of each tmpfs"),
    Check("dos", cpu_hog, "spin on all CPUs", "cpu.max"),
)
FURTHER = (
    Check("dos", threads, "three times as many threads as allowed", "pids.max; RLIMIT_NPROC"),
    Check("dos", memory_of_many, "half the memory in each of eight processes", "memory.max; the watcher"),
    Check("dos", memory_in_files, "twice the memory in files that no process maps", "memory.max; seccomp"),
    Check(
        "dos", memory_in_hidden_files, "the same, not dumpable, so that a watcher can't see them", "memory.max; seccomp"
    ),
    Check("dos", memory_in_flight, "the same, open nowhere: sent and not received", "memory.max; seccomp"),
    Check("dos", memory_in_segments, "twice the memory in detached segments", "memory.max; seccomp"),
    Check(
        "dos", memory_in_mappings, "shared mappings whose pages are in no page table", "memory.max; seccomp; Landlock"
    ),
    Check("dos", memory_in_pipes, "huge pages that only pipes have", "memory.max; seccomp"),
    Check("dos", memory_in_page_tables, "twice the memory in page tables", "memory.max; the watcher"),
    Check("dos", sparse_file, "a file of a TiB with nothing in it", "RLIMIT_FSIZE"),
    Check("dos", inotify_instances, "all of the user's inotify instances", "user.max_inotify_instances"),
    Check("dos", queued_signals, "5000 signals that wait", "RLIMIT_SIGPENDING"),
    Check("dos", pipe_buffers, "200 MiB in pipes", "Linux's limit for a user"),
    Check("dos", message_queues, "64 message queues", "RLIMIT_MSGQUEUE"),
    Check("dos", locked_pages, "8 MiB that are never swapped out", "RLIMIT_MEMLOCK"),
)
