"""Bound of the state directory, ``[storage] max_total``: while it holds more, what may go is dropped, in a fixed order.

What may go is a list of :class:`Droppable`, in this order. Nothing else is removed: if that doesn't suffice, the
kernel's log and STATUS say what is largest. A look walks all files, in a thread, each minute or less often.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from agentos.private_files import display_path
from agentos.threads import Limiter, run_in_thread

from .kinds import Held, measure_files

log = logging.getLogger(__name__)

MIN_INTERVAL: Final = 60.0  # seconds between two looks …
INTERVAL_FACTOR: Final = 100  # … and times the duration of the last one: at most 1 % of a CPU
TELL_INTERVAL: Final = 86400.0  # seconds until the log says again that too much is there
SHOWN: Final = 3  # of the largest owners and kinds


@frozen
class Droppable:
    """Something that may go. ``drop`` removes at least so many bytes, the oldest first, and returns how many."""

    what: str
    drop: Callable[[int], Awaitable[int]]


@define(eq=False)
class StorageBound:
    """``max_total`` in bytes; without one nothing is measured. ``problem`` says what can't be dropped."""

    state_dir: Path
    max_total: int | None
    order: Sequence[Droppable]
    problem: str | None = None
    _told: float = -math.inf  # when the log said it last, on Trio's clock
    _limiter: Limiter = field(factory=lambda: Limiter(1))

    async def serve(self) -> None:
        """Keep the bound until cancelled."""
        while self.max_total is not None:
            began = trio.current_time()
            await self.look(self.max_total)
            await trio.sleep(max(MIN_INTERVAL, INTERVAL_FACTOR * (trio.current_time() - began)))

    async def look(self, max_total: int) -> None:
        """Measure what is there, and drop or tell what is too much."""
        try:
            found = await run_in_thread(measure_files, self.state_dir, limiter=self._limiter)
        except OSError as error:
            place = display_path(error.filename or self.state_dir)
            log.warning("%s: what the state directory holds can't be measured: %s", place, error.strerror)
            return
        excess = sum(held.size for held in found) - max_total
        for each in self.order:
            if excess > 0 and (freed := await each.drop(excess)):
                log.info("[storage] max_total: dropped %s of %s", _in_mib(freed), each.what)
                excess -= freed
        self.problem = _describe(excess, max_total, found) if excess > 0 else None
        if self.problem is not None and trio.current_time() - self._told >= TELL_INTERVAL:
            self._told = trio.current_time()
            log.warning("%s", self.problem)


def _describe(excess: int, max_total: int, found: Sequence[Held]) -> str:
    largest = sorted(found, key=lambda held: -held.size)[:SHOWN]
    listed = ", ".join(f"{held.kind} of {held.owner} ({_in_mib(held.size)})" for held in largest)
    return (
        f"the state directory holds {_in_mib(max_total + excess)}, more than [storage] max_total "
        f"({_in_mib(max_total)}), and the kernel drops nothing else in it; the largest: {listed}; remove what isn't "
        "needed, as `agentos storage` lists it, or raise max_total"
    )


def _in_mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
