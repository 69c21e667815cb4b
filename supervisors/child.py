"""One life of a child: its start handshake, its stop, and its exit."""

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

import trio
from attrs import frozen

from supervisors.exits import KILLED, NORMAL, Ended, Exit, Ignore


class Startable(Protocol):
    """Anything a supervisor can run: an async function, an OS process, a class of your own.

    ``task_status.started(value)`` is the start handshake; the supervisor waits for it without a deadline. An exception
    before it is a failed start; ``Ignore`` declines. ``stop`` is set when the supervisor asks for the end; a child that
    does not end in time is cancelled. Returning ends the child with ``normal``, raising ``Ended`` with the reason that
    it carries, any other exception with ``crash``. One object is run many times, one life after the other.
    """

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None: ...


@frozen(init=False)
class Task:
    """A plain async function as a child. When asked to stop it is cancelled, and ends with ``shutdown``.

    If it takes ``task_status`` it decides itself when it has started; otherwise it has started as soon as it runs.
    """

    function: Callable[..., Awaitable[object]]
    arguments: tuple[object, ...]
    reports_start: bool

    def __init__(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        parameters = inspect.signature(function).parameters
        self.__attrs_init__(function, arguments, "task_status" in parameters)

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        async with trio.open_nursery() as watch:
            failure: Exception | None = None
            watch.start_soon(_cancel_when, stop, scope := trio.CancelScope())
            with scope:
                try:
                    await self._call(task_status)
                except Exception as caught:  # carried out of the nursery, which would wrap it in a group
                    failure = caught
            watch.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if scope.cancelled_caught:
            raise Ended("shutdown")

    async def _call(self, task_status: trio.TaskStatus[object]) -> None:
        if self.reports_start:
            await self.function(*self.arguments, task_status=task_status)
        else:
            task_status.started()
            await self.function(*self.arguments)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class EndedTooEarly(Exception):
    """A child ended without an error before its start handshake."""


class Interrupted(Exception):
    """A start was aborted: its supervisor was asked to stop, or its caller was cancelled."""


def _ignore(life: "Life") -> None: ...


class Life:
    """One life of a child, like a pid in OTP. Its task is the child's task; ``ended`` is called once, at its end."""

    def __init__(self, start: Startable, ended: Callable[["Life"], None]) -> None:
        self._start = start
        self._ended = ended
        self._scope = trio.CancelScope()
        self._stop = trio.Event()
        self._over = trio.Event()
        self._killed = False
        self.value: object = None
        self.began: float | None = None  # trio's clock, seconds; None before the handshake
        self.exit: Exit | None = None
        self.uptime = 0.0  # seconds, once it has ended

    async def run(self, *, task_status: trio.TaskStatus[BaseException | None]) -> None:
        """For ``nursery.start``, which returns None, or the start's exception (``Ignore`` if the child declines)."""
        failure: BaseException | None = None
        try:
            with self._scope:
                await self._start.run(self._stop, task_status=_Handshake(self, task_status))
        except Exception as caught:
            failure = _unwrap_group(caught)
        if self.began is None:
            task_status.started(failure or EndedTooEarly("it ended before it had started"))
            return
        self.uptime = trio.current_time() - self.began
        self.exit = self._exit_reason(failure)
        self._over.set()
        ended, self._ended = self._ended, _ignore  # it refers to the child, and the child to this
        ended(self)

    def started(self, value: object) -> None:
        """Record the handshake: the child is up."""
        self.value = value
        self.began = trio.current_time()

    def kill(self) -> None:
        """Cancel the child: it ends with ``killed``. Wait for the end with ``over``."""
        self._killed = True
        self._scope.cancel()

    async def over(self) -> Exit:
        """Wait for the end; returns the exit."""
        await self._over.wait()
        assert self.exit is not None
        return self.exit

    async def stop(self, grace: float | Literal["brutal_kill", "infinity"]) -> Exit:
        """Ask the child to stop, kill it after ``grace`` seconds, and wait for the end.

        Does nothing if it has ended.
        """
        if self.exit is None and grace == "brutal_kill":
            self.kill()
        elif self.exit is None:
            self._stop.set()
            with trio.move_on_after(math.inf if isinstance(grace, str) else grace):
                return await self.over()
            self.kill()
        return await self.over()

    def _exit_reason(self, failure: BaseException | None) -> Exit:
        if self._killed:
            return KILLED if failure is None or isinstance(failure, Ended) else Exit("killed", failure)
        if failure is None:
            return NORMAL
        return failure.exit if isinstance(failure, Ended) else Exit("crash", failure)


class _Handshake:
    """The task_status of a child: records the value, then lets the supervisor continue."""

    def __init__(self, life: Life, supervisor: trio.TaskStatus[BaseException | None]) -> None:
        self._life = life
        self._supervisor = supervisor

    def started(self, value: Any = None) -> None:
        self._life.started(value)
        self._supervisor.started(None)


def _unwrap_group(failure: BaseException) -> BaseException:
    """Unwrap a chain of groups with one member: a nursery in the child wraps even a single exception."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


def has_declined(failure: BaseException | None) -> bool:
    """Whether a start was declined, which is neither success nor failure."""
    return isinstance(failure, Ignore)
