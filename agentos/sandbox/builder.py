"""Builds jails ahead, has them wait for a plan, and ends those that are of no use any more."""

import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence

import trio
from attrs import Factory, define

from agentos.threads import Limiter, run_in_thread

from . import plan as p
from . import steps as s
from .cgroups import lifetime, v2
from .cgroups.values import CgroupEntry, CgroupError, Limits
from .encoded_steps import encode_plan
from .errors import SandboxError, StepFailed
from .sandbox import reap
from .start import handshake
from .start.ahead import MountTable, TakenJail, WaitingJail, WaitingJails, are_equal, is_memory_short, read_file_ids
from .start.handshake import NewProcess, close_all
from .start.zygote import Zygote, plan_file
from .steps import Step

MEMORY_PERIOD = 5.0  # seconds between two looks whether memory is short
REBUILD_DELAY = 1.0  # seconds from a change of the mount table until waiting jails are replaced: many may follow


@define
class Builder:
    """Builds jails ahead for one spawner, with its zygote; ``_lock`` is for asking that."""

    _zygote: Zygote
    _lock: Limiter
    _children: set[int]  # the spawner's
    _waiting: WaitingJails = Factory(WaitingJails)
    _building: trio.Lock = Factory(trio.Lock)
    _failed: Sequence[Step] | None = None  # steps that can't be done ahead
    _around: v2.Group | None = None  # each waiting jail has a group of its own in it
    _numbers: Iterator[int] = Factory(itertools.count)  # of these groups
    _taken: list[TakenJail] = Factory(list)  # with their groups, and not used yet
    _left: list[v2.Group] = Factory(list)  # by jails that ended while they waited; removed before the next is built

    def close(self) -> None:
        """End the waiting jails."""
        for jail in self._waiting.take_all():
            signal.pidfd_send_signal(jail.process.pidfd, signal.SIGKILL)
            reap(jail.process.pidfd)
            self._forget(jail.process)
        self._waiting.close()

    async def build(self, plan: Sequence[Step]) -> None:
        """Build a jail for the next plan that begins with the same steps as this one, if memory isn't short.

        At most :data:`.ahead.MAX_WAITING` jails wait, and one process for a plan without a jail of its own; the oldest
        ones are ended. Nothing is built if the first steps of this plan can't be done ahead.
        """
        parts = p.split_plan(plan)
        if parts is not None and (parts[0] or self._around is None):  # born in a group, a process fits no other plan
            await self._build(parts[0])

    async def serve(self, around: v2.Group | None = None) -> None:
        """End waiting jails when memory is short, and replace them when the mount table changes, until cancelled.

        With ``around``, each that is built has a group of its own in it, and is taken with it.
        """
        self._around = around
        mounts = MountTable.open()
        try:
            while True:
                with trio.move_on_after(MEMORY_PERIOD) as period:
                    await mounts.wait_for_change()
                if not period.cancelled_caught:
                    stale = self._waiting.take_stale()
                    await self._kill_all(stale)
                    await trio.sleep(REBUILD_DELAY)
                    for jail in stale:
                        await self._build(jail.steps)
                elif self._waiting.jails and is_memory_short():
                    await self._kill_all(self._waiting.take_all())
        finally:
            mounts.close()

    async def take(self, plan: Sequence[Step], *, with_group: bool = False) -> TakenJail | None:
        """Take a jail that waits for this plan, without a group of its own or with one; ``None`` if there is none.

        The group is the caller's from then on. The caller may give the jail to the spawner, and calls
        :meth:`end_unused` in any case.
        """
        wanted = with_group == (self._around is not None) and not self._zygote.closed
        parts = p.split_plan(plan) if wanted else None
        if parts is None:
            return None
        ahead, rest = parts
        jail, useless = self._waiting.take(ahead)
        if useless:
            await self._kill_all(useless)  # shielded: the jail that was taken isn't lost
        if jail is None:
            return None
        taken = TakenJail(jail.process, rest, jail.group)
        if with_group:
            self._taken.append(taken)
        return taken

    def use(self, taken: TakenJail) -> bool:
        """Whether a jail that was taken with its group wasn't used yet: the caller ends it from now on."""
        if is_new := taken in self._taken:
            self._taken.remove(taken)
        return is_new

    async def end_unused(self, taken: TakenJail) -> None:
        """End a jail that was taken with its group, if nobody has used it. Shielded from cancellation."""
        if self.use(taken):
            await self._end(taken.process)

    def reap(self, pid: int) -> bool:
        """Reap this ended child if it was a waiting jail; whether it was."""
        jail = self._waiting.remove(pid)
        if jail is None:
            return False
        reap(jail.process.pidfd)
        self._forget(jail.process)
        if jail.group is not None:
            self._left.append(jail.group)
        return True

    async def _build(self, steps: Sequence[Step]) -> None:
        async with self._building:  # or each would find room for one
            while self._left:
                await lifetime.remove(self._left.pop())
            if (self._failed is not None and are_equal(steps, self._failed)) or self._zygote.closed:
                return
            try:
                useless = self._waiting.make_room(steps)
            except OSError:  # too many open files: the mount table can't be watched
                return
            await self._kill_all(useless)
            if is_memory_short():
                await self._kill_all(self._waiting.take_all())
                return
            try:
                await self._build_one(steps)
            except StepFailed as failed:
                if failed.step != "Clone":  # this may be only for now
                    self._failed = steps
            except (SandboxError, CgroupError, OSError, RuntimeError):  # RuntimeError: no thread can be started
                pass  # the next spawn reports it

    async def _build_one(self, steps: Sequence[Step]) -> None:
        generation = self._waiting.generation
        files = read_file_ids(step.source for step in steps if isinstance(step, s.Bind))
        async with self._create_group() as (group, entry), self._lock:
            jail = WaitingJail(await self._launch(steps, entry.directory), steps, files, group)
            stale = self._waiting.add(jail, generation)
        await self._kill_all(stale)

    @contextlib.asynccontextmanager
    async def _create_group(self) -> AsyncIterator[tuple[v2.Group | None, CgroupEntry]]:
        """A group for a waiting jail, where they have their own; removed again on any exception."""
        if self._around is None:
            yield None, CgroupEntry()
            return
        with trio.CancelScope(shield=True):  # or it would be lost
            group, entry = await run_in_thread(lifetime.create, self._around, f"jail-{next(self._numbers)}", Limits())
        try:
            yield group, entry
        except BaseException:
            await lifetime.remove(group)  # noqa: ASYNC102 - it shields itself
            raise
        finally:
            entry.close()

    async def _launch(self, steps: Sequence[Step], directory: int | None) -> NewProcess:
        """Clone a process and send it these steps; it waits when it has done them."""
        if not steps:
            process = await self._zygote.clone(0, directory)
            self._children.add(process.pid)
            return process
        clone = steps[0]
        assert isinstance(clone, s.Clone), "the first step of each plan that can be split"
        zygote_steps, rest = encode_plan(steps)
        with contextlib.ExitStack() as sent:
            file = sent.enter_context(plan_file(zygote_steps, rest))
            process, trees = await self._zygote.clone_prepared(clone.flags, file, len(zygote_steps), directory)
            self._children.add(process.pid)
            sent.callback(close_all, *trees.values())
            try:
                handshake.send_descriptors(process.control, {"plan": file, **trees})
            except BaseException:
                await self._end(process)  # noqa: ASYNC102 - it shields itself
                raise
        return process

    async def _kill_all(self, jails: Sequence[WaitingJail]) -> None:
        for jail in jails:
            await self._end(jail.process)
            if jail.group is not None:
                await lifetime.remove(jail.group)

    async def _end(self, process: NewProcess) -> None:
        """Kill a waiting process, and reap it; shielded from cancellation."""
        await handshake.kill_and_reap(process.pidfd)
        self._forget(process)

    def _forget(self, process: NewProcess) -> None:
        """Close our descriptors of a waiting process that is reaped."""
        os.close(process.pidfd)
        process.control.close()
        self._children.discard(process.pid)
