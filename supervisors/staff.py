"""Starts and stops children, one by one and in order, on request or for a restart."""

from collections.abc import Callable, Collection, Sequence

import trio

from supervisors import reports
from supervisors.backoff import Backoff, failures_after
from supervisors.child import Interrupted, Life, Startable, has_declined
from supervisors.children import Child, Children, Handle
from supervisors.errors import Refused, StartFailed
from supervisors.exits import Exit
from supervisors.inbox import Due, Inbox, Over
from supervisors.spec import ChildSpec, Shutdown, SupervisorSpec

BROKEN_OFF = "the start was broken off"


class Staff:
    """Used only by the supervisor's task. ``nest`` makes a supervisor from a child that has a spec as its ``start``."""

    nursery: trio.Nursery  # of the children's tasks; set once the supervisor runs

    def __init__(
        self,
        spec: SupervisorSpec,
        path: tuple[str, ...],
        children: Children,
        inbox: Inbox,
        nest: Callable[[Child, SupervisorSpec], Startable],
        observe: reports.Observer | None,
    ) -> None:
        self._spec = spec
        self._path = path
        self._children = children
        self._inbox = inbox
        self._nest = nest
        self._observe = observe
        self._starting: trio.CancelScope | None = None
        self._interrupted = False
        self._dynamic = 0  # children made from the template so far

    # -- In order --------------------------------------------------------------------------------------------------

    async def start_all(self, specs: Sequence[ChildSpec]) -> None:
        """Start the initial children. Raises StartFailed at the first that fails, or that comes after an interrupt."""
        for spec in specs:
            self._children.add(Child(spec))
        for child in self._children:
            failure = Interrupted(BROKEN_OFF) if self._interrupted else await self._start(child)
            if failure is not None and not has_declined(failure):
                raise StartFailed(child.id, failure)

    async def stop_all(self) -> None:
        """Stop all children in the order of the spec; children made from a template all at once."""
        if self._spec.simple or self._spec.shutdown_order == "together":
            await self._stop_together(list(self._children))
        else:
            await self.stop_group(list(self._children))

    async def stop_group(self, group: Sequence[Child]) -> Sequence[Child]:
        """Stop these children, newest first, one by one; returns those that may be restarted, in start order.

        Temporary children are removed.
        """
        for child in reversed(group):
            await self._stop(child)
            if child.spec.restart == "temporary":
                self._children.remove(child)
        return [child for child in group if child.spec.restart != "temporary"]

    async def start_again(self, child: Child) -> bool:
        """Restart the child; returns False if that failed and has to be retried."""
        failure = await self._start(child)
        if failure is None or has_declined(failure):
            return True
        child.restarting = True
        child.last = Exit("failed_start", failure)
        child.failures += 1
        return False

    def wait_for(self, child: Child, delay: float) -> None:
        """Schedule the child's restart in ``delay`` seconds, with a timer of its own."""
        child.restarting = True
        child.due = trio.current_time() + delay
        child.timer = timer = trio.CancelScope()
        self.nursery.start_soon(self._remind, child, timer, delay)
        self._tell(reports.RestartScheduled(self._path, child.id, delay, child.failures))

    def bury(self, child: Child) -> Exit:
        """Record the exit of a child that ended by itself, for the reports and the next restart."""
        life = child.life
        assert life is not None
        assert life.exit is not None
        child.life = None
        child.former = life
        child.last = life.exit
        # Counted without a backoff as well, to be shown in the tree.
        child.failures = failures_after(child.spec.backoff or Backoff(), child.failures, life.exit, life.uptime)
        self._tell(reports.ChildEnded(self._path, child.id, life.exit, life.uptime))
        return life.exit

    def interrupt(self) -> None:
        """Abort the current start, if any: it fails. None of the initial children is started from now on."""
        self._interrupted = True
        if self._starting is not None:
            self._starting.cancel()

    # -- On request ------------------------------------------------------------------------------------------------

    async def add(self, spec: ChildSpec) -> object:
        """OTP's start_child."""
        self._spec.admit(spec, spec.id)
        known = self._children.get(spec.id)
        if known is not None:
            raise Refused("already_started" if known.state == "running" else "already_present", spec.id)
        return await self._start_new(Child(spec))

    async def add_dynamic(self, arguments: tuple[object, ...]) -> object:
        """OTP's start_child under simple_one_for_one. An error in the template's own function is a failed start."""
        template = self._spec.template
        assert template is not None
        self._dynamic += 1
        name = str(self._dynamic)
        try:
            start = template.start(*arguments)
        except Exception as error:
            raise StartFailed(name, error) from error
        return await self._start_new(Child(template.child(name, start)))

    async def restart(self, name: str) -> object:
        """OTP's restart_child."""
        child = self._kept(name)
        if child.state == "stopped":
            child.failures = 0
            return self._answer(child, await self._start(child))
        raise Refused("restarting" if child.state == "restarting" else "running", name)

    async def terminate(self, target: str | Handle, grace: Shutdown | None) -> None:
        """OTP's terminate_child. A handle of a life that is over is accepted, like a dead pid."""
        child = self._children.handled(target) if isinstance(target, Handle) else self._kept(target)
        if child is not None:
            await self._terminate(child, grace)

    async def terminate_together(self, names: Collection[str]) -> None:
        """OTP's terminate_child for several children at the same time; one that isn't known is ignored."""
        async with trio.open_nursery() as together:
            for child in [child for child in self._children if child.id in names]:
                together.start_soon(self._terminate, child)

    async def delete(self, name: str) -> None:
        """OTP's delete_child."""
        child = self._kept(name)
        if child.state != "stopped":
            raise Refused("restarting" if child.state == "restarting" else "running", name)
        self._children.remove(child)

    async def change(self, spec: SupervisorSpec) -> None:
        """Take another spec: stop and delete the children that it lacks, add those that are new in it, stopped."""
        before = {child.id for child in self._spec.children}
        wanted = {child.id: child for child in spec.children}
        removed = [child for child in self._children if child.id not in wanted]
        if self._spec.shutdown_order == "together":
            await self._stop_together(removed)
        for child in reversed(removed):
            await self._stop(child)
            self._children.remove(child)
        # Not a temporary child that has ended: it is known, and forgotten.
        new = [Child(child) for child in spec.children if child.id not in before]
        rows = {child.id: child for child in (*new, *self._children)}
        for child in rows.values():
            child.spec = wanted[child.id]
        self._children.replace([rows[name] for name in wanted if name in rows])
        self._spec = spec

    # -- One child -------------------------------------------------------------------------------------------------

    def _kept(self, name: str) -> Child:
        if self._spec.simple:
            raise Refused("simple_one_for_one", name)
        return self._children.named(name)

    async def _start_new(self, child: Child) -> object:
        failure = await self._start(child)
        if failure is None or (has_declined(failure) and self._children.keeps(child)):
            self._children.add(child)
        return self._answer(child, failure)

    def _answer(self, child: Child, failure: BaseException | None) -> object:
        """The result of a call that started a child: the handshake's value, None if it declined."""
        if child.life is not None:
            return child.life.value
        if failure is None or has_declined(failure):
            return None
        raise StartFailed(child.id, failure)

    async def _start(self, child: Child) -> BaseException | None:
        """Start a new life. Returns None once it is up, else the exception of the start (``Ignore`` if it declined)."""
        start = child.spec.start
        life = Life(
            self._nest(child, start) if isinstance(start, SupervisorSpec) else start,
            lambda life: self._inbox.put(Over(child, life)),
        )
        failure: BaseException | None = Interrupted(BROKEN_OFF)
        try:
            with trio.CancelScope() as self._starting:
                failure = await self.nursery.start(life.run, name="/".join((*self._path, child.id)))
        finally:
            self._starting = None
        if failure is None:
            child.life, child.former = life, None
            self._tell(reports.ChildStarted(self._path, child.id, life.value))
        elif has_declined(failure):
            # OTP keeps the spec of a child that ignores its start, unless it is temporary.
            self._children.rest(child)
            self._tell(reports.ChildDeclined(self._path, child.id))
        else:
            self._tell(reports.ChildStartFailed(self._path, child.id, failure))
        return failure

    async def _stop_together(self, children: Sequence[Child]) -> None:
        async with trio.open_nursery() as together:
            for child in children:
                together.start_soon(self._stop, child)

    async def _terminate(self, child: Child, grace: Shutdown | None = None) -> None:
        await self._stop(child, grace)
        child.failures = 0
        self._children.rest(child)

    async def _stop(self, child: Child, grace: Shutdown | None = None) -> None:
        """Stop the child, and cancel a restart that is due."""
        child.rest()
        life = child.life
        if life is None:
            return
        by_itself = life.exit is not None  # its Over event in the inbox will be ignored
        ending = await life.stop(child.grace if grace is None else grace)
        child.life = None
        kind = reports.ChildEnded if by_itself else reports.ChildTerminated
        self._tell(kind(self._path, child.id, ending, life.uptime))

    async def _remind(self, child: Child, timer: trio.CancelScope, delay: float) -> None:
        with timer:
            await trio.sleep(delay)
            self._inbox.put(Due(child, timer))

    def _tell(self, report: reports.Report) -> None:
        reports.tell(self._observe, report)
