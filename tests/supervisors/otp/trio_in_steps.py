"""Trio for tests that are not async: one run as a guest in this thread, advanced step by step, in virtual time."""

import queue
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing

T = TypeVar("T")

PATIENCE = 60  # seconds of real time in which a step has to come to its end


class TrioInSteps:
    """``call`` runs an async function in the guest to its end, then everything that follows from it at once."""

    def __init__(self) -> None:
        self._ready: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._over: list[Any] = []
        self._jobs: trio.MemorySendChannel[Callable[[], Awaitable[None]]] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self.nursery: trio.Nursery
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._ready.put,
            done_callback=self._over.append,
            host_uses_signal_set_wakeup_fd=True,
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
        self._pump(lambda: self._token is not None)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        answers: list[T] = []
        errors: list[Exception] = []

        async def job() -> None:
            try:
                answers.append(await function())
            except Exception as error:  # goes to the caller, not to the guest
                errors.append(error)
            await trio.testing.wait_all_tasks_blocked()

        assert self._token is not None
        assert self._jobs is not None
        finished: list[None] = []

        async def watched() -> None:
            await job()
            finished.append(None)

        self._token.run_sync_soon(self._jobs.send_nowait, watched)
        self._pump(lambda: bool(finished))
        if errors:
            raise errors[0]
        return answers[0]

    def close(self) -> None:
        """Cancel what still runs. Raises what the run ended with."""
        assert self._token is not None
        self._token.run_sync_soon(self.nursery.cancel_scope.cancel)
        self._pump(lambda: bool(self._over))
        self._over[0].unwrap()

    async def _main(self) -> None:
        self._jobs, jobs = trio.open_memory_channel[Callable[[], Awaitable[None]]](1)
        async with self._jobs, jobs, trio.open_nursery() as self.nursery:
            self._token = trio.lowlevel.current_trio_token()
            async for job in jobs:
                await job()

    def _pump(self, until: Callable[[], bool]) -> None:
        while not until():
            if self._over:
                self._over[0].unwrap()
                raise AssertionError("the guest ended too early")
            self._ready.get(timeout=PATIENCE)()
