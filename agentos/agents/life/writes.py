"""The kernel's own writes to an agent's files: they wait while these are copied, as its frozen program does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field


@define(eq=False)
class Writes:
    """Those of one life. Any number at once, or none while :meth:`hold` is entered, by one task at a time."""

    _going: int = 0
    _held: bool = False
    _changed: trio.Event = field(factory=trio.Event)

    async def __aenter__(self) -> None:
        """Begin a write; waits while all are held."""
        while self._held:
            await self._changed.wait()
        self._going += 1

    async def __aexit__(self, *error: object) -> None:
        self._going -= 1
        self._tell()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Begin no further write, and wait until those that go on have ended."""
        self._held = True
        try:
            while self._going:
                await self._changed.wait()
            yield
        finally:
            self._held = False
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
