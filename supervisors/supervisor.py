"""A supervisor: one loop over one inbox, which starts, stops and restarts its children.

Modelled on OTP 25's ``supervisor`` (stdlib 4.2). All decisions are made in one task (``_lead``): ``restarts`` decides
which children are restarted, how often and how soon; ``staff`` starts and stops the children.
"""

import random as randomness
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import trio
from msgspec import Struct

from supervisors import reports
from supervisors.child import Startable
from supervisors.children import Child, ChildInfo, Children, Counts, Handle
from supervisors.errors import NoProc, Refused, SpecError, StartFailed, SupervisorError
from supervisors.exits import (
    KILLED,
    SHUTDOWN,
    Ended,
    Exit,
    GaveUp,
    gave_up,
)
from supervisors.inbox import Call, Due, Inbox, Item, Over, Retry, Stop
from supervisors.reports import Observer
from supervisors.restarts import Restarts
from supervisors.spec import ChildSpec, Shutdown, SupervisorSpec, valid_shutdown
from supervisors.staff import Staff

T = TypeVar("T")


class Supervisor:
    """Runs once: ``supervisor = Supervisor(spec); await nursery.start(supervisor.run)``.

    ``run`` reports the supervisor itself as started when all children are up, and raises StartFailed if one failed to
    start (``stop`` before that aborts the start, so it raises this too).

    When the supervisor ends, ``run`` returns if that was requested (``stop``, ``auto_shutdown``) and raises GaveUp if
    it gave up; ``exit`` tells which, and its detail has the child. Cancelling ``run`` kills the supervisor: its workers
    end with ``killed``, its sub-supervisors stop their children in order, and only then does ``run`` end.

    ``id`` and ``within`` (the supervisors above it) are the path in reports; ``random`` makes the jitter repeatable.
    Calls are answered in the order they were made; a call from a child's own start would deadlock. A caller that is
    cancelled while it waits withdraws a call that the supervisor has not begun. A call in progress takes effect all the
    same, except that a start that has not succeeded yet is aborted.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        *,
        observe: Observer | None = None,
        id: str = "root",
        random: randomness.Random | None = None,
        within: tuple[str, ...] = (),
    ) -> None:
        self.spec = spec
        self.id = id
        self.path = (*within, id)
        self.exit: Exit | None = None  # set once it has ended
        self._observe = observe
        self._inbox = Inbox()
        self._children = Children(simple=spec.simple)
        nest = partial(_nest, observe, random, self.path)
        self._staff = Staff(spec, self.path, self._children, self._inbox, nest, observe)
        self._restarts = Restarts(spec, self.path, self._children, self._inbox, self._staff, random, observe)
        self._mortal = trio.CancelScope()  # around everything that a kill interrupts
        self._current: Call | None = None
        self._runs = False
        self._over = trio.Event()

    # -- For its owner ---------------------------------------------------------------------------------------------

    async def run(
        self, stop: trio.Event | None = None, *, task_status: trio.TaskStatus["Supervisor"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start the children and serve until the end. ``stop``, when set, requests an orderly end. Raises GaveUp."""
        if self._runs or self._over.is_set():
            raise RuntimeError("a Supervisor runs once; make another of the same spec")
        self._runs = True
        try:
            # The listener is outside the shield, so it gets the cancellation when the supervisor is killed. The
            # children are inside, so they end before the supervisor, in the order that it decides.
            async with trio.open_nursery() as outside:
                outside.start_soon(self._listen, stop)
                with trio.CancelScope(shield=True):
                    await self._live(task_status)
                outside.cancel_scope.cancel()
        finally:
            self._close()
        assert self.exit is not None
        if self.exit.reason == "failed_start" and isinstance(self.exit.detail, StartFailed):
            raise self.exit.detail
        if gave_up(self.exit):
            raise GaveUp(self.exit)

    def stop(self, ending: Exit = SHUTDOWN) -> None:
        """Request an orderly end with ``ending``: children stop in reverse order. A start in progress is aborted."""
        if not self._over.is_set():
            self._inbox.put(Stop(ending))
            self._staff.interrupt()

    async def wait(self) -> Exit:
        """Wait for the end; returns the exit."""
        await self._over.wait()
        assert self.exit is not None
        return self.exit

    def children(self) -> Sequence[ChildInfo]:
        """Like which_children, but immediate, whatever the supervisor is doing; a snapshot."""
        return self._children.which()

    def restarts_in_period(self) -> int:
        """How many restarts count towards the intensity now; 0 if that is unlimited."""
        return self._restarts.intensity.count(trio.current_time())

    # -- OTP's calls -----------------------------------------------------------------------------------------------

    async def start_child(self, *what: object) -> object:
        """Add a child and start it; ``what`` is its ChildSpec, under simple_one_for_one the template's arguments.

        Returns the value of its handshake, None if it declined. Raises Refused ``already_started`` or
        ``already_present``, SpecError, StartFailed (then no spec is kept), NoProc.
        """
        if self.spec.simple:
            return await self._ask(partial(self._staff.add_dynamic, what))
        match what:
            case (ChildSpec() as spec,):
                return await self._ask(partial(self._staff.add, spec))
            case _:
                raise TypeError("start_child takes one ChildSpec, unless the strategy is simple_one_for_one")

    async def restart_child(self, child: str) -> object:
        """Start a child that is stopped; returns the same as start_child. Its failures are forgotten.

        Raises Refused ``running``, ``restarting``, ``not_found`` or ``simple_one_for_one``, StartFailed, NoProc.
        """
        return await self._ask(partial(self._staff.restart, child))

    async def terminate_child(self, child: str | Handle, *, shutdown: Shutdown | None = None) -> None:
        """Stop a child, or cancel its restart that is due; ``shutdown`` overrides that of its spec, this once.

        Raises Refused ``not_found``, or ``simple_one_for_one`` for an id there (use a handle), SpecError, NoProc.
        """
        if not valid_shutdown(shutdown):
            raise SpecError("invalid_shutdown", f"shutdown is seconds, 'brutal_kill' or 'infinity', not {shutdown!r}")
        await self._ask(partial(self._staff.terminate, child, shutdown))

    async def terminate_children(self, children: Sequence[str]) -> None:
        """Beyond OTP: terminate_child of several at the same time; ids that it doesn't know are ignored.

        Raises Refused ``simple_one_for_one``, NoProc.
        """
        if self.spec.simple:
            raise Refused("simple_one_for_one", self.id)
        await self._ask(partial(self._staff.terminate_together, frozenset(children)))

    async def delete_child(self, child: str) -> None:
        """Delete the spec of a child that is stopped.

        Raises Refused ``running``, ``restarting``, ``not_found`` or ``simple_one_for_one``, NoProc.
        """
        await self._ask(partial(self._staff.delete, child))

    async def change_spec(self, spec: SupervisorSpec) -> None:
        """Take another spec, as in OTP's code_change: its flags, and the order and the terms of the children.

        Children that run go on, a ``start`` that differs is for the next one. Children that are new in it are there,
        stopped: restart_child starts them. Beyond OTP, children that it lacks are stopped, newest first, and deleted.

        Raises SpecError ``bad_combination`` if one of the specs is simple_one_for_one, NoProc.
        """
        if spec.simple or self.spec.simple:
            raise SpecError("bad_combination", "the spec of a simple_one_for_one supervisor can't be changed")

        async def change() -> None:
            await self._staff.change(spec)
            self.spec = spec
            self._restarts.change(spec)

        await self._ask(change)

    async def which_children(self) -> Sequence[ChildInfo]:
        """All children, newest first. Raises NoProc."""
        return await self._ask(partial(_look, self._children.which))

    async def count_children(self) -> Counts:
        """The numbers of specs, live children, supervisors and workers. Raises NoProc."""
        return await self._ask(partial(_look, self._children.count))

    async def _ask(self, do: Callable[[], Awaitable[T]]) -> T:
        if not self._runs or self._over.is_set():
            await trio.lowlevel.checkpoint()
            raise NoProc(self.id)
        values: list[T] = []

        async def keep() -> None:
            values.append(await do())

        call = Call(keep)
        self._inbox.put(call)
        try:
            await call.answered.wait()
        except trio.Cancelled:
            call.withdrawn = True
            if self._current is call:
                self._staff.interrupt()
            raise
        if call.error is not None:
            raise call.error
        return values[0]

    # -- Its life --------------------------------------------------------------------------------------------------

    async def _listen(self, stop: trio.Event | None) -> None:
        """The only task that gets outside events: the stop request, and the cancellation by a kill."""
        try:
            if stop is not None:
                await stop.wait()
                self.stop()
            await trio.sleep_forever()
        except trio.Cancelled:
            if self.exit is None:
                self._mortal.cancel()
            raise

    async def _live(self, task_status: trio.TaskStatus["Supervisor"]) -> None:
        """From the first child's start to the last one's end."""
        async with trio.open_nursery() as nursery:
            self._staff.nursery = nursery
            ending = KILLED
            with self._mortal:
                ending = await self._lead(task_status)
            if self._mortal.cancelled_caught:
                await self._leave_orphans()
            self.exit = ending
        self._tell(reports.SupervisorEnded(self.path, ending))

    async def _lead(self, task_status: trio.TaskStatus["Supervisor"]) -> Exit:
        try:
            await self._staff.start_all(self.spec.children)
        except StartFailed as failure:
            ending = Exit("failed_start", failure)
        else:
            task_status.started(self)
            self._tell(reports.SupervisorStarted(self.path))
            ending = await self._serve()
        await self._staff.stop_all()
        return ending

    async def _serve(self) -> Exit:
        while True:
            ending = await self._handle(await self._inbox.take())
            if ending is not None:
                return ending

    async def _handle(self, item: Item) -> Exit | None:
        """Handle one item; returns an exit if the supervisor is to end."""
        match item:
            case Over(child, life):
                # Another life, or none: the supervisor itself has stopped this one and waited for its end.
                return await self._restarts.ended(child) if child.life is life else None
            case Retry(id):
                waiting = self._children.get(id)
                if waiting is not None and waiting.restarting and waiting.timer is None:
                    return await self._restarts.restart(waiting)
            case Due(child, timer):
                if child.timer is timer:
                    await self._restarts.revive(child)
            case Stop(ending):
                return ending
            case Call():
                await self._answer(item)
        return None

    async def _answer(self, call: Call) -> None:
        if call.withdrawn:
            return
        self._current = call
        try:
            await call.do()
        except SupervisorError as refusal:
            call.answer(refusal)
        else:
            call.answer()
        finally:
            self._current = None
            if not call.answered.is_set():  # killed during the call
                call.answer(NoProc(self.id))

    async def _leave_orphans(self) -> None:
        """After a kill: kill the workers; sub-supervisors, as in OTP, still stop their own children in order."""
        for child in self._children:
            child.rest()
            if child.life is not None and child.alive:
                if isinstance(child.life.value, Supervisor):
                    child.life.value.stop(KILLED)
                else:
                    child.life.kill()
        for child in self._children:
            if child.life is not None:
                await child.life.over()

    def _close(self) -> None:
        if self.exit is None:  # an exception that no supervisor handles, such as KeyboardInterrupt
            self.exit = KILLED
        self._over.set()
        for item in self._inbox.drain():
            if isinstance(item, Call):
                item.answer(NoProc(self.id))

    def _tell(self, report: reports.Report) -> None:
        reports.tell(self._observe, report)


async def _look(read: Callable[[], T]) -> T:
    return read()


def _nest(
    observe: Observer | None,
    random: randomness.Random | None,
    within: tuple[str, ...],
    child: Child,
    spec: SupervisorSpec,
) -> Startable:
    """No method: the supervisor's parts would refer to it, and all of an ended one wait for the garbage collector."""
    return _Nested(Supervisor(spec, observe=observe, id=child.id, random=random, within=within))


class _Nested(Struct, frozen=True):
    """A supervisor as a child: its exit is the child's exit, also after an orderly end."""

    supervisor: Supervisor

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        await self.supervisor.run(stop, task_status=task_status)
        assert self.supervisor.exit is not None
        raise Ended(self.supervisor.exit)
