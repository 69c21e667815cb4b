"""Audit log: queues entries and writes them to a hash chain on disk, which reveals later changes.

An intent is on disk before the call that announced it continues. Other entries are written soon, many at a time, and
cost the caller microseconds. Nothing is dropped silently: entries for which there is no room are counted, and the count
is written. One task takes the queue and hands it to the single writer thread.
"""

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import trio
from attrs import define
from outcome import Error, Outcome, Value

from agentos.database import DatabaseError
from agentos.kernel.ports import Entry
from agentos.private_files import shown
from agentos_sdk.errors import Unavailable

from . import query as audit_query
from .categories import CATEGORIES, category_of
from .chain import LOST, STARTED, STOPPED, Row, Waiting, own, plain, shortened
from .flood import Flood
from .pace import Pace
from .query import Query
from .segments import MOST_TOGETHER
from .writer import KEPT, SEGMENT, Log

log = logging.getLogger(__name__)

MOST_NOTED = 10_000  # notes that wait to be written
MOST_INTENDED = 1000  # intents that wait to be written; further callers wait to be admitted
SOON = 0.05  # seconds until a note is written, so that several are written together
COUNTED = 1.0  # seconds until counts are written, and between attempts to write after a failure

SWITCHABLE = frozenset(CATEGORIES) - {"kernel"}
KILL = "KILL"  # announced if possible and executed in any case: an agent that fills the disk must be stoppable


@define(eq=False)
class _Intent:
    waiting: Waiting
    state: Literal["waiting", "begun", "withdrawn"] = "waiting"
    waiter: trio.lowlevel.Task | None = None


@asynccontextmanager
async def open_audit(
    directory: Path, version: str, *, segment_size: int = SEGMENT, kept: int = KEPT
) -> AsyncIterator["Audit"]:
    """Open the log in ``directory``, created if missing; raises :class:`DatabaseError`.

    It stays open until the block ends, cancelled or not: what is queued by then is written first. So everything that
    uses the log runs inside the block.
    """
    failure: BaseException | None = None
    files = await trio.to_thread.run_sync(partial(Log, directory, segment_size, kept))
    try:
        begun = [Waiting(own(STARTED, f"agentos {version}"), time.time())]
        await trio.to_thread.run_sync(files.append, begun)
        async with trio.open_nursery() as nursery:
            audit = Audit(files)
            nursery.start_soon(audit.serve)
            try:
                yield audit
            except BaseException as error:  # noqa: ASYNC103, ASYNC104 - it is raised below
                failure = error
            audit.close("ok" if failure is None else type(failure).__name__)
        if failure is not None:
            raise failure  # outside the nursery, which would wrap it in a group
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(files.close)


class Audit:
    """Implements :class:`agentos.kernel.ports.AuditLog`."""

    def __init__(self, files: Log) -> None:
        self.directory = files.directory  # for opening files in it
        self._files = files
        self._off: set[str] = set()
        self._queue: deque[Waiting | _Intent] = deque()
        self._room = trio.Semaphore(MOST_INTENDED)
        self._flood = Flood()
        self._pace = Pace()
        self._lost = 0
        self._unannounced = 0  # KILLs that were executed without an entry
        self._failing = False
        self._closing = False
        self._deadline = float("inf")  # when the queue has to be written at the latest
        self._sooner = trio.Event()
        self._turn = trio.CapacityLimiter(1)  # its own limiter: writing doesn't wait for other threads
        self._readers = trio.CapacityLimiter(1)

    # -- Writing ---------------------------------------------------------------------------------------------------

    async def intend(self, entry: Entry) -> int | None:
        """See :class:`agentos.kernel.ports.AuditLog`. If cancelled, either nothing was written or it returns first."""
        if entry.kind != "operator" and entry.call != KILL:  # not paced: a runaway agent can be killed at once
            await self._pace.turn(entry.family or str(entry.agent))
        async with self._room:
            if self._closing:
                raise Unavailable("the kernel is stopping: its audit log is closed")
            if self._is_spared(entry):
                if entry.call == KILL:
                    self._count_unannounced(entry)
                    return None
                raise Unavailable("not done, as the audit log's disk is full: see that there is room on it")
            intent = _Intent(Waiting(shortened(entry), time.time()))
            self._queue.append(intent)
            self._write_by(-float("inf"))

            def withdraw(_raise_cancel: object) -> trio.lowlevel.Abort:
                if intent.state == "begun":
                    return trio.lowlevel.Abort.FAILED
                intent.state = "withdrawn"
                return trio.lowlevel.Abort.SUCCEEDED

            intent.waiter = trio.lowlevel.current_task()
            number: int | None = await trio.lowlevel.wait_task_rescheduled(withdraw)
            return number

    def note(self, entry: Entry) -> None:
        """See :class:`agentos.kernel.ports.AuditLog`."""
        if self._off and self._is_off(entry):
            return
        entry, now = shortened(entry), trio.current_time()
        if entry.intent is None and self._is_spared(entry):
            self._flood.count(entry, now)
        elif entry.intent is None and not self._flood.admits(entry, now):
            self._write_by(now + COUNTED)
        elif len(self._queue) >= MOST_NOTED:
            self._flood.count(entry, now)
            self._write_by(now + COUNTED)
        else:
            self._queue.append(Waiting(entry, time.time()))
            self._write_by(now + SOON)

    def close(self, outcome: str) -> None:
        """Have the queue and then KERNEL_STOP written; nothing after that."""
        self._closing = True
        self._count_surplus()
        self._queue.append(Waiting(own(STOPPED, "", outcome), time.time()))
        self._write_by(-float("inf"))

    # -- Reading and settings --------------------------------------------------------------------------------------

    async def newest(self, query: Query, limit: int) -> Sequence[Row]:
        return await trio.to_thread.run_sync(audit_query.newest, self.directory, query, limit, limiter=self._readers)

    async def oldest(self, query: Query, limit: int) -> Sequence[Row]:
        return await trio.to_thread.run_sync(audit_query.oldest, self.directory, query, limit, limiter=self._readers)

    @property
    def config(self) -> Mapping[str, bool]:
        """For each category: whether allowed calls without an intent are logged. All other entries always are."""
        return {category: category not in self._off for category in sorted(SWITCHABLE)}

    def configure(self, wanted: Mapping[str, bool]) -> None:
        """Switch categories on and off, until the kernel stops."""
        self._off = {category for category, on in {**self.config, **wanted}.items() if not on}

    def _is_off(self, entry: Entry) -> bool:
        return entry.decision == "allow" and entry.intent is None and category_of(entry.call) in self._off

    def _is_spared(self, entry: Entry) -> bool:
        """Whether an entry is not written because the disk is full: the reserved room is for the operator."""
        return self._files.sparing and entry.kind not in ("operator", "kernel")

    # -- The writer ------------------------------------------------------------------------------------------------

    def _write_by(self, deadline: float) -> None:
        if deadline < self._deadline:
            self._deadline = deadline
            self._sooner.set()

    async def serve(self) -> None:
        """Write until the log is closed and the queue is empty; cancellation waits for that, too."""
        with trio.CancelScope(shield=True):
            while self._queue or not self._closing:
                while trio.current_time() < self._deadline:
                    self._sooner = trio.Event()
                    with trio.move_on_at(self._deadline):
                        await self._sooner.wait()
                self._count_surplus()
                await self._write(self._take())
                if self._files.sparing:
                    with suppress(RuntimeError):  # no thread available: retried later
                        await trio.to_thread.run_sync(self._files.refill, limiter=self._turn)
                    self._write_by(trio.current_time() + COUNTED)
        if self._lost:
            log.error("the audit log is closed, and lacks %d entries that couldn't be written", self._lost)

    def _take(self) -> list[Waiting | _Intent]:
        group: list[Waiting | _Intent] = []
        while self._queue and len(group) < MOST_TOGETHER - 1:  # one more for the count of lost entries
            item = self._queue.popleft()
            if isinstance(item, _Intent):
                if item.state == "withdrawn":
                    continue
                item.state = "begun"
            group.append(item)
        self._deadline = -float("inf") if self._queue else float("inf")
        return group

    def _count_unannounced(self, entry: Entry) -> None:
        if not self._unannounced:
            told = (plain(entry.about), plain(entry.name))
            log.warning("KILL of %s by %s is done without an entry in the audit log, as that can't be written", *told)
        self._unannounced += 1
        self._write_by(trio.current_time() + COUNTED)

    def _count_surplus(self) -> None:
        if self._files.sparing and not self._closing:
            return
        if self._unannounced:
            about = f"{self._unannounced} KILLs were done that couldn't be announced"
            self._queue.append(Waiting(own(LOST, about, "lost"), time.time(), self._unannounced))
            self._unannounced = 0
        if self._flood.counted:
            for each in self._flood.surplus(trio.current_time()):
                self._queue.append(Waiting(each.entry, time.time(), each.count))

    async def _write(self, group: list[Waiting | _Intent]) -> None:
        lost = self._lost
        entries = [item.waiting if isinstance(item, _Intent) else item for item in group]
        if lost:
            about = f"{lost} entries couldn't be written"
            entries.insert(0, Waiting(own(LOST, about, "lost"), time.time(), lost))
        if not entries:
            return
        last = self._files.last
        try:
            first = await trio.to_thread.run_sync(self._files.append, entries, limiter=self._turn)
        except Exception as error:  # disk error or no thread; begun intents get an answer in any case
            written = self._files.last != last
            self._lost -= lost if written else 0
            self._failed(error, group, written)
            return
        if self._failing:
            log.warning("the audit log is written again; %d entries were lost", lost)
        self._failing, self._lost = False, self._lost - lost
        for number, item in enumerate(group, first + bool(lost)):
            if isinstance(item, _Intent):
                _tell(item, Value(number))

    def _failed(self, error: Exception, group: Sequence[Waiting | _Intent], written: bool) -> None:
        """Refuse the intents, except KILL; count the notes as lost, unless they were written after all."""
        if not self._failing:
            log.error("the audit log can't be written, and what needs it is refused: %s", error)
        self._failing = True
        why = error if isinstance(error, DatabaseError) else f"{shown(self.directory)}: {error}"
        for item in group:
            if isinstance(item, _Intent):  # only the operator may learn the names of the host's files
                if item.waiting.entry.call == KILL:
                    self._count_unannounced(item.waiting.entry)
                    _tell(item, Value(None))
                    continue
                told = why if item.waiting.entry.kind == "operator" else "the kernel's log says why"
                _tell(item, Error(Unavailable(f"not done, as the audit log can't be written: {told}")))
            elif not written:
                self._lost += item.repeated
        if self._lost:
            self._write_by(trio.current_time() + COUNTED)


def _tell(intent: _Intent, result: Outcome[int | None]) -> None:
    assert intent.waiter is not None
    trio.lowlevel.reschedule(intent.waiter, result)
