"""Observes attackers from outside while they run: number of processes, memory, CPU time."""

import os
import threading
import time
from collections.abc import Set
from typing import Any

from attrs import Factory, define

SAMPLE_INTERVAL = 0.05  # seconds between samples
_PAGE, _CLOCK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


@define
class ObservedUsage:
    """The maxima observed for one attacker. Memory is the bytes of one process: shared pages can't be told apart."""

    processes: int = 0
    memory: int = 0
    cpu: float = 0.0  # seconds
    first: float = 0.0
    last: float = 0.0

    @property
    def share(self) -> float:
        """Share of one CPU while it ran."""
        return self.cpu / max(self.last - self.first, SAMPLE_INTERVAL)


@define
class ProcessSampler:
    """A thread that samples /proc; attackers are found by the marker in their command line.

    Those that run when it is entered are no attackers, and a host may have hundreds: they are never read.
    """

    markers: frozenset[str]
    seen: dict[str, ObservedUsage] = Factory(dict)
    _others: Set[int] = frozenset()  # pids
    _stopped: threading.Event = Factory(threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "ProcessSampler":
        self._others = _list_pids()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_INTERVAL):
            self._sample()

    def _sample(self) -> None:
        now, present = time.monotonic(), _list_pids()
        self._others &= present  # the pid of one that has ended may be an attacker's
        found = _find_among(present - self._others, self.markers)
        for marker, pids in found.items():
            seen = self.seen.setdefault(marker, ObservedUsage(first=now))
            seen.processes, seen.last = max(seen.processes, len(pids)), now
            used = [one for one in map(_usage, pids) if one is not None]
            seen.memory = max([seen.memory, *(memory for memory, _ in used)])
            seen.cpu = max(seen.cpu, sum(cpu for _, cpu in used))


def find_processes(markers: frozenset[str]) -> dict[str, list[int]]:
    """The attackers' pids by marker in their command line; zombies have no command line."""
    return _find_among(_list_pids() - {os.getpid()}, markers)


def _find_among(pids: Set[int], markers: frozenset[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for pid in pids:
        text = _read(f"/proc/{pid}/cmdline")
        if b"probe.py" in text:
            for marker in markers:
                if marker.encode() in text:
                    found.setdefault(marker, []).append(pid)
    return found


def _list_pids() -> Set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _usage(pid: int) -> tuple[int, float] | None:
    """Memory in bytes, and CPU time in seconds, including children that have been waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[21]) * _PAGE, sum(map(int, fields[11:15])) / _CLOCK) if fields else None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has ended, or isn't readable for us
        return b""
