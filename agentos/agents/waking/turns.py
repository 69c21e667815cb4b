"""Bounds how many waiting agents are started at a time, so that other starts don't wait behind many of these."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

MAX_STARTING = 8  # agents at a time
SLOW_SECONDS = 1.0  # a start that takes longer doesn't count


@define(eq=False)
class Turns:
    """Turns to start an agent, of which :data:`MAX_STARTING` are held at a time."""

    _free: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_STARTING), init=False)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block or :data:`SLOW_SECONDS`. The block may raise nothing."""
        await self._free.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hold)
            yield
            nursery.cancel_scope.cancel()

    async def _hold(self) -> None:
        try:
            await trio.sleep(SLOW_SECONDS)
        finally:
            self._free.release()
