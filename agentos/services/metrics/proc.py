"""Figures of processes and of the host, read from /proc. All functions block."""

import os
import time
from collections.abc import Iterable

from msgspec import Struct

from agentos.sandbox.files.proc_files import read_file
from agentos.sandbox.watch.processes import PAGE_SIZE, TICKS_PER_SECOND, read_small_file

from .figures import HostFigures


class ProcessFigures(Struct, frozen=True):
    """What some processes use together, ``at`` in seconds since the epoch; RSS counts shared memory for each of them.

    ``pss`` divides shared memory among those that map it. None: not asked for, or not readable by this process.
    """

    at: float
    cpu_seconds: float | None = None
    rss: int | None = None
    pss: int | None = None
    vms: int | None = None
    threads: int | None = None
    fds: int | None = None


def read_processes(pids: Iterable[int], with_pss: bool) -> ProcessFigures:
    """Read processes; those that have ended meanwhile are left out. PSS takes half a millisecond for each."""
    at, found, descriptors, shares = time.time(), [], [], []
    for pid in pids:
        data = read_small_file(f"/proc/{pid}/stat")
        if not data:
            continue
        fields = data[data.rindex(b")") + 2 :].split()
        # utime stime cutime cstime, num_threads, vsize, rss
        found.append((sum(map(int, fields[11:15])), int(fields[17]), int(fields[20]), int(fields[21])))
        descriptors.append(_count_descriptors(pid))
        shares.append(_read_pss(pid) if with_pss else None)
    if not found:
        return ProcessFigures(at)
    ticks, threads, size, pages = map(sum, zip(*found, strict=True))
    return ProcessFigures(
        at, ticks / TICKS_PER_SECOND, pages * PAGE_SIZE, _sum_known(shares), size, threads, _sum_known(descriptors)
    )


def _count_descriptors(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:  # it has ended
        return 0
    except OSError:
        return None


def _read_pss(pid: int) -> int | None:
    try:
        lines = read_file(f"/proc/{pid}/smaps_rollup").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _sum_known(numbers: list[int | None]) -> int | None:
    """The sum; None if one of the numbers isn't known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def read_host(directory: str, before: HostFigures | None, seconds: float | None) -> HostFigures:
    """The figures of the host; ``seconds`` have passed since ``before``. ``directory`` is on the disk that is shown."""
    meminfo = {name: int(rest.split()[0]) << 10 for name, rest in _split_lines(read_file("/proc/meminfo"))}
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, read_file("/proc/stat").split("\n")[0].split()[1:])
    used = (user + nice + system + irq + softirq) / TICKS_PER_SECOND
    received = sent = 0
    for name, rest in _split_lines(read_file("/proc/net/dev")):
        if name != "lo":
            counters = rest.split()
            received, sent = received + int(counters[0]), sent + int(counters[8])
    disk = os.statvfs(directory)
    cpu = None
    if before is not None and before.cpu_seconds is not None and seconds:
        cpu = max(0.0, used - before.cpu_seconds) / seconds
    return HostFigures(
        cpu=cpu,
        cpu_seconds=used,
        cpu_count=os.cpu_count(),
        load=os.getloadavg(),
        memory_total_bytes=meminfo.get("MemTotal"),
        memory_available_bytes=meminfo.get("MemAvailable"),
        swap_total_bytes=meminfo.get("SwapTotal"),
        swap_free_bytes=meminfo.get("SwapFree"),
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        received_bytes=received,
        sent_bytes=sent,
    )


def _split_lines(text: str) -> Iterable[tuple[str, str]]:
    """Names and the rest of lines ``NAME: REST``; other lines are left out."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon:
            yield name.strip(), rest
