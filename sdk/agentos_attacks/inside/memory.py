"""Attacks that take more memory than they may, in places where not every limit counts it."""

import ctypes
import mmap
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from functools import partial

from .frame import MIB, Check, Result, Targets, blocked, call, escaped, libc, not_applicable, repeat

FILE_MIB = 8  # MiB per file


def memory_bomb(targets: Targets) -> Result:
    """One process allocates twice the limit."""
    limit, kept = targets["limits"]["memory"], list[bytes]()
    made, why = repeat(2 * limit // MIB + 64, lambda _: kept.append(b"x" * MIB))
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
    return _allocate_twice_the_limit(targets, partial(_fill_file, files))


def memory_in_flight(targets: Targets) -> Result:
    """Memory files that no process has open: they are in flight in a socket."""
    files: list[int] = []
    one, _other = socket.socketpair()

    def more(number: int) -> None:
        _fill_file(files, number)
        if number % FILE_MIB == FILE_MIB - 1:
            socket.send_fds(one, [b"x"], files)
            os.close(files.pop())

    return _allocate_twice_the_limit(targets, more)


def _fill_file(files: list[int], number: int) -> None:
    """Write a MiB to the last of these memory files; a new one for each :data:`FILE_MIB`."""
    if number % FILE_MIB == 0:
        files.append(os.memfd_create(f"hoard {number}"))
    if os.write(files[-1], bytes(MIB)) != MIB:
        raise OSError("not all was written")


def _allocate_twice_the_limit(targets: Targets, more: Callable[[int], object]) -> Result:
    """Allocate twice the limit, MiB by MiB."""
    made, why = repeat(2 * targets["limits"]["memory"] // MIB, more)
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

    made, why = repeat(2 * targets["limits"]["memory"] // (8 * MIB), more)
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
    found = {"anonymous": repeat(most, share_nothing), "/dev/zero": repeat(most, share_zero)}
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

    made, why = repeat(
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


CHECKS = (Check("dos", memory_bomb, "twice the memory, in one process", "memory.max; the watcher; RLIMIT_DATA"),)
FURTHER = (
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
)
