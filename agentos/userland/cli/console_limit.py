"""How much of each agent's output the console shows: what is more is counted, and is in the log on disk."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from attrs import define, field

BYTES_PER_SECOND = 16 << 10  # of one agent, LINE_COST added for each line
BURST_BYTES = 256 << 10  # … that may come at once
LINE_COST = 64


@define(eq=False)
class ConsoleLimit:
    """A token bucket for each agent. The counts are taken by the thread that prints, so there is a lock.

    ``clock`` gives seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _used: dict[str, tuple[float, float]] = field(factory=dict)  # by agent: bytes, and when that was
    _withheld: Counter[str] = field(factory=Counter)
    _lock: threading.Lock = field(factory=threading.Lock)

    def admit(self, name: str, lines: list[str]) -> list[str]:
        """Those of an agent's lines that may be shown: the first ones, for the others come too fast."""
        now = self.clock()
        used, then = self._used.get(name, (0.0, now))
        used = max(0.0, used - (now - then) * BYTES_PER_SECOND)
        shown = 0
        while shown < len(lines) and used < BURST_BYTES:
            used += len(lines[shown]) + LINE_COST
            shown += 1
        if len(self._used) > 1000:  # those that have been quiet need no entry
            quiet = BURST_BYTES / BYTES_PER_SECOND
            self._used = {one: entry for one, entry in self._used.items() if now - entry[1] < quiet}
        self._used[name] = used, now
        if shown < len(lines):
            with self._lock:
                self._withheld[name] += len(lines) - shown
        return lines[:shown]

    def take_withheld(self) -> Mapping[str, int]:
        """How many lines of each agent weren't shown since the last time this was asked."""
        with self._lock:
            taken, self._withheld = self._withheld, Counter()
        return taken
