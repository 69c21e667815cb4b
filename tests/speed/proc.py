"""What /proc says about processes: memory, descent, and whether one still lives."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

PROC = Path("/proc")


@frozen
class Identity:
    """A process, told from a later one with the same number by when it started (clock ticks since boot)."""

    pid: int
    start: int


def _stat(pid: int) -> list[str] | None:
    """The fields after the name, from state (3) on; ``None``: no such process."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, with all its threads."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> set[Identity]:
    """All processes beneath ``pid``, and those in its session whose parent has gone; ``pid`` is not among them."""
    stats = {int(name): stat for name in os.listdir(PROC) if name.isdigit() and (stat := _stat(int(name)))}
    found = {Identity(member, int(stat[19])) for member, stat in stats.items() if int(stat[3]) == pid != member}
    parents = {pid}
    while parents:
        children = {child: stat for child, stat in stats.items() if int(stat[1]) in parents}
        found |= {Identity(child, int(stat[19])) for child, stat in children.items()}
        parents = set(children)
    return found


def is_alive(process: Identity) -> bool:
    """A zombie has ended: that its parent has not asked is not its fault."""
    stat = _stat(process.pid)
    return stat is not None and int(stat[19]) == process.start and stat[0] not in "ZX"


def kill_all(processes: Iterable[Identity]) -> list[Identity]:
    """Ends those that still live, which it returns."""
    left = [process for process in processes if is_alive(process)]
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return left


@frozen
class Memory:
    """Bytes; ``pss`` counts a page shared by n processes as its n-th part, ``dirty`` are pages nobody else has."""

    rss: int
    pss: int
    dirty: int


def memory(pid: int) -> Memory:
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return Memory(kib["Rss"] << 10, kib["Pss"] << 10, kib["Private_Dirty"] << 10)


def own_memory(pid: int) -> int:
    """Bytes of RAM of a process that no file backs; 0 if it has ended."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    sizes = (line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return sum(int(kib) << 10 for _, kib, _ in sizes)
