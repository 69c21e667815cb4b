"""Functions in worker threads, whose arguments are freed when the call ends, and limits on how many run at once."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack, cast

import trio

T = TypeVar("T")
Args = TypeVarTuple("Args")

MAX_THREADS = 40  # as Trio's default


async def run_in_thread(
    function: Callable[[Unpack[Args]], T], *args: *Args, limiter: "trio.CapacityLimiter | Limiter | None" = None
) -> T:
    """``trio.to_thread.run_sync`` for arguments that may be large: they are freed also if ``function`` raises.

    Frames of Trio's worker thread hold what the function raised, and its traceback holds those frames: all of it, and
    the variables of all frames above, would stay until the garbage collector runs, which an idle kernel seldom does.

    Without a ``limiter`` at most :data:`MAX_THREADS` run at once; that one costs no pass of the event loop, as Trio's
    own does.
    """
    raised: list[Exception] = []

    def call() -> T | None:
        try:
            return function(*args)
        except Exception as error:
            raised.append(error)
            return None

    limiter = limiter or _threads
    result = await trio.to_thread.run_sync(call, limiter=limiter)  # type: ignore[arg-type]  # it needs two methods
    if raised:
        raise raised.pop()
    return cast(T, result)


class Limiter:
    """A capacity limiter for tasks and threads that costs no pass of the event loop while it has a free slot."""

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
        return await run_in_thread(function, limiter=self)


_threads = Limiter(MAX_THREADS)
