"""Functions in worker threads, whose arguments are freed when the call ends, and limits on how many run at once."""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack, cast

import trio
from outcome import Outcome

T = TypeVar("T")
Args = TypeVarTuple("Args")

MAX_THREADS = 40  # as Trio's default


async def run_in_thread(function: Callable[[Unpack[Args]], T], *args: *Args, limiter: "Limiter | None" = None) -> T:
    """``trio.to_thread.run_sync`` for arguments that may be large: they are freed also if ``function`` raises.

    Frames of Trio's worker thread hold what the function raised, and its traceback holds those frames: all of it, and
    the variables of all frames above, would stay until the garbage collector runs, which an idle kernel seldom does.

    Without a ``limiter`` at most :data:`MAX_THREADS` run at once; that one costs no pass of the event loop, as Trio's
    own does. The function has no context variables and no name of its own for its thread, which take Trio a quarter
    of the time; of ``trio.from_thread`` it has only :func:`check_cancelled`, from here.
    """
    slots, job, raised = limiter or _threads, _Job(), list[Exception]()
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()

    def call() -> T | None:
        _running.job = job
        try:
            return function(*args)
        except Exception as error:
            raised.append(error)
            return None
        finally:
            del _running.job

    def end(result: Outcome[T | None]) -> None:
        slots.release()
        trio.lowlevel.reschedule(task, result)

    def deliver(result: Outcome[T | None]) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # an internal error of Trio has ended the task
            token.run_sync_soon(end, result)

    await trio.lowlevel.checkpoint_if_cancelled()
    await slots.acquire()
    try:
        trio.lowlevel.start_thread_soon(call, deliver)
    except BaseException:
        slots.release()
        raise
    result = await trio.lowlevel.wait_task_rescheduled(job.keep_waiting)
    if raised:
        raise raised.pop()
    return cast(T, result)


def check_cancelled() -> None:
    """In such a function, or what it calls: raise ``trio.Cancelled`` if the task that waits for it is cancelled."""
    job: _Job | None = getattr(_running, "job", None)
    if job is not None and job.raise_cancel is not None:
        job.raise_cancel()


class _Job:
    """A call in a worker thread."""

    raise_cancel: trio.lowlevel.RaiseCancelT | None = None  # once the task that waits for it is cancelled

    def keep_waiting(self, raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        self.raise_cancel = raise_cancel
        return trio.lowlevel.Abort.FAILED  # the thread can't be interrupted


class Limiter:
    """Limits how many tasks or threads run at once; costs no pass of the event loop while it has a free slot."""

    def __init__(self, total: int) -> None:
        self._free = trio.Semaphore(total)
        self.release = self._free.release

    async def acquire(self) -> None:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            await self._free.acquire()

    __aenter__ = acquire

    async def __aexit__(self, *error: object) -> None:
        self._free.release()


_threads = Limiter(MAX_THREADS)
_running = threading.local()  # its ``job`` is the one that this thread runs
