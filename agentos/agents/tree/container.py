"""Per-child supervisors: under ``one_for_one`` each declared agent or group gets a supervisor of its own."""

import contextlib
from collections.abc import Awaitable, Callable

import trio
from attrs import define
from msgspec import Struct

from supervisors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    Ended,
    Exit,
    GaveUp,
    Ignore,
    Startable,
    StartFailed,
    Supervisor,
    SupervisorSpec,
)
from supervisors.exits import gave_up
from supervisors.reports import Observer
from supervisors.strategy import Restart

Path = tuple[str, ...]


@define(eq=False)
class Container:
    """A child of a declared supervisor: runs another supervisor, which has one child, an agent or a group.

    It reports its start before that child is up, so that the supervisor above goes on with its next child. That
    supervisor runs it as ``transient``: it ends with ``shutdown`` when its child has ended for good or was given up,
    and with ``crash`` when its child was given up and ``escalates`` is set.
    """

    path: Path  # of the supervisor that it runs; the last part is the child's name
    spec: SupervisorSpec
    escalates: bool
    observe: Observer
    declines: Callable[[], bool] = lambda: False  # whether its agent was stopped by request, or waits
    supervisor: Supervisor | None = None  # of the present life or the last one

    @property
    def child(self) -> ChildSpec:
        """The spec of the only child, an agent or a group."""
        return self.spec.children[0]

    @property
    def group(self) -> Supervisor | None:
        """The supervisor of the group while it runs; None for an agent."""
        inside = self.child.start
        if not isinstance(inside, Group) or inside.supervisor is None or inside.supervisor.exit is not None:
            return None
        return inside.supervisor

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus["Container"]) -> None:
        """Run one life of the supervisor, with any number of lives of its child."""
        if self.declines():
            raise Ignore
        *within, name = self.path
        self.supervisor = Supervisor(self.spec, id=name, within=tuple(within), observe=self.observe)
        task_status.started(self)
        # StartFailed: stopped before the child's task ran. The child itself can't fail before it reports its start.
        with contextlib.suppress(GaveUp, StartFailed):
            await self.supervisor.run(stop)
        assert self.supervisor.exit is not None
        cause = find_underlying_exit(self.supervisor.exit)
        raise Ended("crash" if self.escalates and gave_up(cause) else "shutdown", cause.detail)


class BackgroundStart(Struct, frozen=True):
    """An agent's life as the child of a container: it counts as started before its program is up.

    ``wait`` returns when it may begin. A failed start is a crash that the container's supervisor counts. ``stop``
    aborts a start.
    """

    start: Startable
    wait: Callable[[], Awaitable[None]]

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        done = False
        try:
            async with trio.open_nursery() as life, trio.open_nursery() as starting:
                starting.start_soon(cancel_when, stop, starting.cancel_scope)
                await self.wait()
                await life.start(self.start.run, stop)
                done = True
                starting.cancel_scope.cancel()
        except* Ignore:  # a short job that ended with status 0: a normal end
            done = True
        if not done:
            raise Ended("shutdown")


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel the scope when the event is set."""
    await event.wait()
    scope.cancel()


@define(eq=False)
class Group:
    """A declared supervisor as the child of a container. ``began`` is called with the supervisor of each life.

    ``wait`` returns when it may begin.

    It counts as started before its children are up: a child that doesn't start is a crash of the group. ``stop`` during
    the start stops the children that are up, in order.
    """

    path: Path
    spec: SupervisorSpec
    observe: Observer
    began: Callable[[Supervisor], None]
    wait: Callable[[], Awaitable[None]]
    supervisor: Supervisor | None = None  # of the present life or the last one

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        *within, name = self.path
        task_status.started()
        async with trio.open_nursery() as starting:
            starting.start_soon(cancel_when, stop, starting.cancel_scope)
            await self.wait()
            starting.cancel_scope.cancel()
        if stop.is_set():
            raise Ended("shutdown")
        self.supervisor = Supervisor(self.spec, id=name, within=tuple(within), observe=self.observe)
        self.began(self.supervisor)
        await self.supervisor.run(stop)
        assert self.supervisor.exit is not None
        raise Ended(self.supervisor.exit)


def find_underlying_exit(ending: Exit) -> Exit:
    """The exit of a container's child if that ended the container, otherwise the exit of the container itself.

    A ``transient`` or ``temporary`` group that gave up and isn't restarted counts as given up.
    """
    return ending.detail.last if isinstance(ending.detail, AutoShutdown) else ending


def specify_one_child(
    name: str, start: Startable, restart: Restart, backoff: Backoff | None, intensity: float, period: float
) -> SupervisorSpec:
    """The spec of a supervisor with one child that ends when this child has ended for good."""
    child = ChildSpec(
        name,
        start,
        restart=restart,
        shutdown="infinity",  # the child limits its own shutdown time
        significant=restart != "permanent",
        backoff=backoff,
    )
    return SupervisorSpec([child], intensity=intensity, period=period, auto_shutdown="any_significant")
