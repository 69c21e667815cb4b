"""Restarts: ``strategy`` decides which children are restarted, ``intensity`` how often, ``backoff`` how soon."""

import random as randomness

import trio
from msgspec.structs import replace

from supervisors import reports
from supervisors.backoff import delay
from supervisors.children import Child, Children
from supervisors.exits import AutoShutdown, Exit, IntensityExceeded, TooManyFailures
from supervisors.inbox import Inbox, Retry
from supervisors.reports import Observer
from supervisors.spec import SupervisorSpec
from supervisors.staff import Staff
from supervisors.strategy import Intensity, affected, comes_back, shuts_down


class Restarts:
    """Used only by the supervisor's task. Without ``random`` each delay has a new generator: most never need one."""

    def __init__(
        self,
        spec: SupervisorSpec,
        path: tuple[str, ...],
        children: Children,
        inbox: Inbox,
        staff: Staff,
        random: randomness.Random | None,
        observe: Observer | None,
    ) -> None:
        self.spec = spec
        self.intensity = Intensity(spec.intensity, spec.period)
        self._path = path
        self._children = children
        self._inbox = inbox
        self._staff = staff
        self._random = random
        self._observe = observe

    def change(self, spec: SupervisorSpec) -> None:
        """Go on with another spec: restarts so far count."""
        self.spec = spec
        self.intensity = replace(self.intensity, restarts=spec.intensity, period=spec.period)

    async def ended(self, child: Child) -> Exit | None:
        """Handle a child that ended by itself: restart it, remove it, or end the supervisor."""
        ending = self._staff.bury(child)
        if comes_back(child.spec.restart, ending):
            return await self.restart(child)
        self._children.rest(child)
        others = self._children.significant_left()
        if shuts_down(self.spec.auto_shutdown, significant=child.spec.significant, others=others):
            return Exit("shutdown", AutoShutdown(child.id, ending))
        return None

    async def restart(self, child: Child) -> Exit | None:
        """Check the restart limit first, then the delay."""
        self.intensity = self.intensity.counting(trio.current_time())
        backoff = child.spec.backoff
        if self.intensity.exceeded:
            spent = len(self.intensity.times)
            return self._give_up(child, IntensityExceeded(child.id, child.last, spent, self.spec.period))
        if backoff is not None and backoff.max_failures is not None and child.failures >= backoff.max_failures:
            return self._give_up(child, TooManyFailures(child.id, child.last, child.failures))
        own = 0.0
        if backoff is not None:
            random = self._random or randomness.Random()  # noqa: S311 - jitter is no secret
            own = delay(backoff, child.failures, random)
        wait = max(own, self._still_waiting(child))
        if wait > 0:  # the group stops now, and its restart is delayed as a whole
            await self._staff.stop_group(self._group(child))
            self._staff.wait_for(child, wait)
        else:
            await self.revive(child)
        return None

    def _give_up(self, child: Child, cause: IntensityExceeded | TooManyFailures) -> Exit:
        self._children.rest(child)
        ending = Exit("shutdown", cause)
        reports.tell(self._observe, reports.SupervisorGaveUp(self._path, ending))
        return ending

    def _group(self, child: Child) -> list[Child]:
        """The children that are restarted with it, in start order."""
        return [self._children.named(name) for name in affected(self.spec.strategy, self._children.ids, child.id)]

    def _still_waiting(self, child: Child) -> float:
        """Seconds that others of its group still have to wait: a sibling's failure must not shorten their delay."""
        now = trio.current_time()
        return max((member.due - now for member in self._group(child) if member.timer is not None), default=0.0)

    async def revive(self, child: Child) -> None:
        """Stop what is left of the group and start it again; a child that fails to start is retried later."""
        group = self._group(child)
        reports.tell(self._observe, reports.Restarting(self._path, child.id, tuple(member.id for member in group)))
        for member in await self._staff.stop_group(group):
            if not await self._staff.start_again(member):
                # Queued behind all other items, so that a call can cancel it: OTP's try_again_restart.
                self._inbox.put(Retry(member.id))
                return
