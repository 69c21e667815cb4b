"""How many lines the kernel itself logs: agents cause many of them, and choose parts of their text.

Each line is judged twice: an equal warning comes :data:`MAX_EQUAL` times a minute, and lines of one kind (one format
of one logger) come in a burst, then :data:`PER_SECOND`. What is withheld is counted, and the counts are said a minute
later at the latest. So a caller that repeats or varies a line silences no line of another kind, and takes no memory.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from attrs import define

from agentos.services.rate_limit import Rate

MAX_EQUAL = 3  # equal warnings or errors in WINDOW
WINDOW = 60.0  # seconds
BURST = {logging.INFO: 2000, logging.WARNING: 200}  # lines of one kind; of a fleet each agent's start is told
PER_SECOND = 5.0  # lines of one kind after the burst
MAX_KEPT = 256  # texts, and kinds, that are remembered; the oldest is forgotten
MAX_EXAMPLE_CHARS = 200

log = logging.getLogger(__name__)

Kind = tuple[str, str]
K = TypeVar("K")
V = TypeVar("V")


@define
class Equal:
    """How often one text came since ``at``."""

    at: float
    count: int = 0


class KernelLimit(logging.Filter):
    """A filter for all handlers of a process's log, which share its decision about each line.

    As a context manager it is that of the handlers that are there at its start; its end tells of what was withheld.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._equal: dict[tuple[Kind, str], Equal] = {}
        self._rates: dict[Kind, Rate] = {}
        self._withheld: dict[Kind, tuple[int, str]] = {}  # count, and the last text
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.tell()
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged."""
        admitted: bool | None = getattr(record, "admitted", None)
        if admitted is None:
            with self._lock:
                admitted = record.admitted = self._admit(record)
        return admitted

    def _admit(self, record: logging.LogRecord) -> bool:
        kind, text, now = (record.name, str(record.msg)), record.getMessage(), self._now()
        if self._is_new(kind, text, now, record.levelno) and self._fits(kind, now, record.levelno):
            return True
        count, _ = self._withheld.get(kind, (0, ""))
        self._withheld[kind] = count + 1, text[:MAX_EXAMPLE_CHARS]
        if self._timer is None:
            self._timer = threading.Timer(WINDOW, self.tell)
            self._timer.daemon = True
            self._timer.start()
        return False

    def _is_new(self, kind: Kind, text: str, now: float, level: int) -> bool:
        if level < logging.WARNING:
            return True
        seen = remember(self._equal, (kind, text[:MAX_EXAMPLE_CHARS]), partial(Equal, now))
        if now - seen.at >= WINDOW:
            seen.at, seen.count = now, 0
        seen.count += 1
        return seen.count <= MAX_EQUAL

    def _fits(self, kind: Kind, now: float, level: int) -> bool:
        burst = BURST[logging.WARNING if level >= logging.WARNING else logging.INFO]
        return not remember(self._rates, kind, partial(Rate, PER_SECOND, burst)).wait(now)

    def tell(self) -> None:
        """Log the counts of what was withheld."""
        with self._lock:
            withheld, self._withheld = self._withheld, {}
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        for count, text in withheld.values():
            log.warning("%d lines more like this one: %s", count, text, extra={"admitted": True})


def remember(kept: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value of ``key``, made if it isn't there; the oldest is forgotten beyond :data:`MAX_KEPT`."""
    if key not in kept:
        while len(kept) >= MAX_KEPT:
            del kept[next(iter(kept))]
        kept[key] = make()
    return kept[key]
