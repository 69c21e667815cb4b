"""Attacks that exhaust shared resources. Each attempt stops by itself, a little above its limit."""

import fcntl
import mmap
import os
import resource
import signal
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial

from .frame import MIB, Check, Result, Targets, any_of, blocked, call, escaped, repeat

DIRECTORIES = ("/workspace", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev", "/run/lock", "/dev/mqueue")
MAX_INSTANCES = 64  # of inotify; Linux allows 128 per user


def fork_bomb(targets: Targets) -> Result:
    most = targets["limits"]["max_pids"]
    children: list[int] = []

    def fork(_: int) -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)

    try:
        made, why = repeat(min(300, 3 * most), fork)
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

    made, why = repeat(3 * most, start)
    done.set()
    return escaped(f"{made} threads") if made > most else blocked(f"{made} threads: {why}")


def fd_exhaustion(targets: Targets) -> Result:
    made, why = repeat(5000, lambda _: os.dup(0))
    return escaped(f"{made} descriptors") if made > targets["limits"]["open_files"] else blocked(f"{made}: {why}")


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

        made, why = repeat(2 * most // MIB, more)
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
        made, _ = repeat(2 * limit, partial(_touch, top))
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
    made, why = repeat(200, lambda _: call("inotify_init1", 0))
    return escaped(f"{made} instances") if made > MAX_INSTANCES else blocked(f"{made}: {why}")


def queued_signals(_: Targets) -> Result:
    """Blocked real-time signals use kernel memory, and also count for the user that made the sandbox."""
    number = signal.SIGRTMIN + 5
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    info = struct.pack("=iii4xii", number, 0, -1, os.getpid(), os.getuid()).ljust(128, b"\0")
    made, why = repeat(5000, lambda _: call("rt_sigqueueinfo", os.getpid(), int(number), info))
    return escaped(f"{made} signals") if made > 1024 else blocked(f"{made}: {why}")


def pipe_buffers(_: Targets) -> Result:
    """Pipes of 1 MiB each; Linux allows 64 MiB per user, then one page per pipe."""

    def make(_: int) -> None:
        read, _write = os.pipe()
        fcntl.fcntl(read, 1031, MIB)  # F_SETPIPE_SZ

    made, why = repeat(200, make)
    return escaped(f"{made} MiB") if made > 64 else blocked(f"{made} MiB: {why}")


def message_queues(_: Targets) -> Result:
    attributes = struct.pack("=8q", 0, 10, 8192, 0, 0, 0, 0, 0)
    flags = os.O_CREAT | os.O_RDWR
    make = lambda number: call("mq_open", f"queue{number}".encode(), flags, 0o600, attributes)  # noqa: E731
    made, why = repeat(64, make)
    return escaped(f"{made} queues of 80 KiB") if made > 20 else blocked(f"{made} queues: {why}")


def locked_pages(_: Targets) -> Result:
    """Pages locked into memory by MAP_LOCKED."""

    def lock() -> str:
        mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)
        return "locked"

    return any_of([("MAP_LOCKED", lock)])


CHECKS = (
    Check("dos", fork_bomb, "three times as many children as allowed", "pids.max; RLIMIT_NPROC"),
    Check("dos", fd_exhaustion, "5000 descriptors", "RLIMIT_NOFILE"),
    Check("dos", disk_fill, "twice the size of each writable place", "sized tmpfs"),
    Check("dos", inode_flood, "twice the files of each writable place", "nr_inodes of each tmpfs"),
    Check("dos", cpu_hog, "spin on all CPUs", "cpu.max"),
)
FURTHER = (
    Check("dos", threads, "three times as many threads as allowed", "pids.max; RLIMIT_NPROC"),
    Check("dos", sparse_file, "a file of a TiB with nothing in it", "RLIMIT_FSIZE"),
    Check("dos", inotify_instances, "all of the user's inotify instances", "user.max_inotify_instances"),
    Check("dos", queued_signals, "5000 signals that wait", "RLIMIT_SIGPENDING"),
    Check("dos", pipe_buffers, "200 MiB in pipes", "Linux's limit for a user"),
    Check("dos", message_queues, "64 message queues", "RLIMIT_MSGQUEUE"),
    Check("dos", locked_pages, "8 MiB that are never swapped out", "RLIMIT_MEMLOCK"),
)
