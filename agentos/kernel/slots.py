"""Limit how many tasks or threads do something at once."""

from collections.abc import Callable
from typing import TypeVar

import trio

from agentos.threads import run_in_thread

T = TypeVar("T")


class Slots:
    """A capacity limiter, also for threads, that costs no pass of the event loop while it has a free slot."""

    def __init__(self, total: int) -> None:
        self._free = trio.Semaphore(total)

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            await self._free.acquire()

    def release_on_behalf_of(self, borrower: object) -> None:
        self._free.release()

    async def __aenter__(self) -> None:
        await self.acquire_on_behalf_of(self)

    async def __aexit__(self, *error: object) -> None:
        self._free.release()

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a thread."""
        return await run_in_thread(function, limiter=self)  # type: ignore[arg-type]
