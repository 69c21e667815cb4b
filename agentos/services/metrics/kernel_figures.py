"""Figures of the kernel's own process from /proc/self, and the lag of its event loop."""

import os
import resource
import time
from collections.abc import Mapping

import trio
from attrs import define
from msgspec import Struct

from agentos.sandbox.files.proc_files import read_file

from .figures import KernelFigures

LAG_INTERVAL = 0.25  # seconds between two measurements
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class LoopCounts(Struct, frozen=True):
    """Connections, their limit, and lengths of queues by name; only the event loop may read them."""

    connections: int = 0
    connections_limit: int | None = None
    waiting: Mapping[str, int] = {}


@define(eq=False)
class LoopLag:
    """How long a task that is due waits for the event loop; ``longest`` since the last :meth:`take`, in seconds."""

    longest: float | None = None

    async def serve(self) -> None:
        """Measure until cancelled."""
        while True:
            due = trio.current_time() + LAG_INTERVAL
            await trio.sleep_until(due)
            self.longest = max(self.longest or 0.0, trio.current_time() - due)

    def take(self) -> float | None:
        """Return the longest wait since the last call; None if nothing was measured since then."""
        longest, self.longest = self.longest, None
        return longest


def read_kernel(before: KernelFigures | None, lag: float | None, counts: LoopCounts) -> KernelFigures:
    """The figures of this process, with the CPU time since ``before``. Blocks: it reads /proc."""
    at = time.time()
    text = read_file("/proc/self/stat")
    fields = text[text.rindex(")") + 2 :].split()
    seconds = sum(map(int, fields[11:13])) / TICKS_PER_SECOND  # utime, stime: without ended children
    cpu = None
    if before is not None and before.cpu_seconds is not None and at > before.at:
        cpu = max(0.0, seconds - before.cpu_seconds) / (at - before.at)
    return KernelFigures(
        at=at,
        loop_lag_seconds=lag,
        cpu=cpu,
        cpu_seconds=seconds,
        memory_bytes=int(fields[21]) * PAGE_SIZE,
        threads=int(fields[17]),
        fds=len(os.listdir("/proc/self/fd")) - 1,  # that of this listing
        fds_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        connections=counts.connections,
        connections_limit=counts.connections_limit,
        waiting=dict(counts.waiting),
    )
