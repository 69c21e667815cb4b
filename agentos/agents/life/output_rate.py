"""How fast the output of agents is read: fast while the kernel has nothing else to do, never slower than a floor.

Reading costs time of the event loop, and of the thread that writes the log. So the rate falls with the time that the
loop needs for everything else, and with the lines that wait for the disk: a program that writes faster waits.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from attrs import define, field

BYTES_PER_SECOND = 64 << 20  # read of the only stream of an idle kernel
LINE_COST_BYTES = 64  # bytes added per line, since each line takes time, however short
LEAST_SHARE = 1 / 16  # of that rate, however busy the kernel is
SAMPLE_SECONDS = 0.05  # between two looks at the clocks
FREE_FILL = 0.25  # of the log's queue: up to it nothing is slowed down …
FULL_FILL = 0.75  # … and from it on no more than ``LEAST_SHARE`` is read


@define(eq=False)
class OutputRate:
    """``clock`` gives seconds, ``cpu_clock`` the seconds of CPU of the loop's thread.

    ``log_fill`` says how full the log's queue is, from 0 to 1.
    """

    log_fill: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.perf_counter
    cpu_clock: Callable[[], float] = time.thread_time
    load: float = 0.0  # the part of its time, reading aside, that the loop worked
    _reading: float = 0.0  # seconds of CPU since the last look
    _looked: tuple[float, float] | None = field(default=None)

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Around the work on output: what it takes isn't part of the load."""
        begin = self.cpu_clock()
        try:
            yield
        finally:
            self._reading += self.cpu_clock() - begin

    def cost(self, size: int, lines: int) -> float:
        """Seconds that a read of ``size`` bytes with ``lines`` line breaks costs now."""
        self._look()
        fill = (self.log_fill() - FREE_FILL) / (FULL_FILL - FREE_FILL)
        free = 1 - max(self.load, min(fill, 1.0))
        share = max(LEAST_SHARE, free * free)  # squared, as load that is held up by reading looks smaller than it is
        return (size + lines * LINE_COST_BYTES) / (BYTES_PER_SECOND * share)

    def _look(self) -> None:
        now, cpu = self.clock(), self.cpu_clock()
        if self._looked is None:
            self._looked, self._reading = (now, cpu), 0.0
        elapsed = now - self._looked[0]
        if elapsed < SAMPLE_SECONDS:
            return
        others = cpu - self._looked[1] - self._reading
        load = others / max(elapsed - self._reading, 1e-6)
        self.load = min(1.0, max(0.0, load if elapsed > 1 else (self.load + load) / 2))
        self._looked, self._reading = (now, cpu), 0.0
