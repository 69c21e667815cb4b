"""Audit log: queues entries and writes them to a hash chain on disk, which reveals later changes.

An intent is on disk before the call that announced it continues. Other entries are written soon, many at a time, and
cost the caller microseconds. Nothing is dropped silently: entries for which there is no room are counted, and the count
is written. One thread at a time writes what is queued. An intent starts it at once; what is queued meanwhile is written
together afterwards. The thread then syncs the head file, while the next one makes its rows.
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
from msgspec import Struct
from outcome import Error, Outcome, Value, capture

from agentos.database import DatabaseError
from agentos.finishing import run_and_finish
from agentos.kernel.ports import Entry
from agentos.private_files import display_path
from agentos.services.events import Publish, SyscallBlocked, discard
from agentos_sdk.errors import ApprovalRefused, ApprovalRequired, PermissionDenied, Unavailable

from . import query as audit_query
from .categories import CATEGORIES, category_of
from .chain import LOST, STARTED, STOPPED, Link, QueuedEntry, Row, escape_controls, kernel_entry, shorten_entry
from .flood import EntryLimiter
from .pace import IntentPacer
from .query import Query
from .redaction import redact
from .segments import MAX_COMMIT_ROWS
from .writer import KEPT_SEGMENTS, SEGMENT_BYTES, LogWriter

log = logging.getLogger(__name__)

MAX_QUEUED_NOTES = 10_000  # notes that wait to be written
MAX_QUEUED_INTENTS = 1000  # intents that wait to be written; further callers wait to be admitted
NOTE_DELAY = 0.05  # seconds until a note is written, so that several are written together
RETRY_DELAY = 1.0  # seconds until counts are written, and between attempts to write after a failure

SWITCHABLE = frozenset(CATEGORIES) - {"kernel"}
REFUSALS = frozenset({PermissionDenied.code, ApprovalRequired.code, ApprovalRefused.code})
RESERVED_FOR = frozenset({"operator", "kernel"})  # kinds whose entries are written on a full disk, in reserved room
MAX_REASON_CHARS = 500  # of a refusal that is published
KILL = "KILL"  # announced if possible and executed in any case: an agent that fills the disk must be stoppable


@define(eq=False)
class _Intent:
    queued: QueuedEntry
    waiter: trio.lowlevel.Task
    state: Literal["waiting", "begun", "withdrawn"] = "waiting"


@define(eq=False)
class _Group:
    """What is written in one commit."""

    items: Sequence[QueuedEntry | _Intent]
    lost: int  # entries that couldn't be written before; the first row says so
    last: Link  # the end of the chain before it


class AuditHealth(Struct, frozen=True):
    """The number of the last entry, the number of lost ones, and what is wrong.

    ``checked_at``: when the kernel began, and checked the end of the log; seconds since the epoch.
    """

    entries: int
    lost: int
    checked_at: float
    problem: str | None


@asynccontextmanager
async def open_audit(
    directory: Path,
    version: str,
    publish: Publish = discard,
    *,
    segment_size: int = SEGMENT_BYTES,
    kept: int = KEPT_SEGMENTS,
) -> AsyncIterator["Audit"]:
    """Open the log in ``directory``, created if missing; raises :class:`DatabaseError`. Refusals are published.

    It stays open until the block ends, cancelled or not: what is queued by then is written first. So everything that
    uses the log runs inside the block.
    """
    files = await trio.to_thread.run_sync(partial(LogWriter, directory, segment_size, kept))
    try:
        begun = [QueuedEntry(kernel_entry(STARTED, f"agentos {version}"), time.time())]
        await trio.to_thread.run_sync(files.append, begun)
        audit = Audit(files, publish)

        def close(failure: BaseException | None) -> None:
            audit.close("ok" if failure is None else type(failure).__name__)

        async with run_and_finish(audit.serve, close):
            yield audit
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(files.close)


class Audit:
    """Implements :class:`agentos.kernel.ports.AuditLog`."""

    def __init__(self, files: LogWriter, publish: Publish) -> None:
        self.directory = files.directory  # for opening files in it
        self._files = files
        self._publish = publish
        self._disabled: set[str] = set()
        self._queue: deque[QueuedEntry | _Intent] = deque()
        self._intent_slots = trio.Semaphore(MAX_QUEUED_INTENTS)
        self._limiter = EntryLimiter()
        self._pacer = IntentPacer()
        self._lost = 0
        self._unannounced = 0  # KILLs that were executed without an entry
        self._failing = False
        self._closing = False
        self._deadline = float("inf")  # when the queue has to be written at the latest
        self._wake = trio.Event()
        self._writing = False  # a thread writes rows
        self._token = trio.lowlevel.current_trio_token()
        self._read_limiter = trio.CapacityLimiter(1)

    @property
    def health(self) -> AuditHealth:
        """Whether the log is sound as far as the kernel knows without reading it."""
        files, problem = self._files, None
        if files.disk_full:
            problem = "its disk is full: agents' calls are refused until there is space"
        elif self._failing:
            problem = "it can't be written: calls that must be logged are refused; the kernel's log says why"
        elif files.trouble:
            problem = f"it was tampered with or damaged: {files.trouble}"
        return AuditHealth(files.last.seq, self._lost, files.opened_at, problem)

    # -- Writing ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many entries wait to be written."""
        return len(self._queue)

    async def intend(self, entry: Entry) -> int | None:
        """See :class:`agentos.kernel.ports.AuditLog`. If cancelled, either nothing was written or it returns first."""
        if entry.kind != "operator" and entry.call != KILL:  # not paced: a runaway agent can be killed at once
            await self._pacer.wait_turn(entry.family or str(entry.agent))
        try:
            self._intent_slots.acquire_nowait()  # takes no pass of the event loop
        except trio.WouldBlock:
            await self._intent_slots.acquire()
        try:
            if self._closing:
                raise Unavailable("the kernel is stopping: its audit log is closed")
            if self._files.disk_full and entry.kind not in RESERVED_FOR:
                if entry.call == KILL:
                    self._count_unannounced(entry)
                    return None
                raise Unavailable("not done: the disk of the audit log is full; free some space on it")
            intent = _Intent(QueuedEntry(shorten_entry(entry), time.time()), trio.lowlevel.current_task())
            self._queue.append(intent)
            self._write_by(-float("inf"))

            def withdraw(_raise_cancel: object) -> trio.lowlevel.Abort:
                if intent.state == "begun":
                    return trio.lowlevel.Abort.FAILED
                intent.state = "withdrawn"
                return trio.lowlevel.Abort.SUCCEEDED

            number: int | None = await trio.lowlevel.wait_task_rescheduled(withdraw)
            return number
        finally:
            self._intent_slots.release()

    def note(self, entry: Entry, repeated: int = 1) -> None:
        """See :class:`agentos.kernel.ports.AuditLog`. An entry that stands for several calls is not limited again."""
        if self._disabled and self._is_disabled(entry):
            return
        entry, now = shorten_entry(entry), trio.current_time()
        if entry.intent is None and repeated == 1 and not self._limiter.admits(entry, now):
            self._write_by(now + RETRY_DELAY)
            return
        if _is_refusal(entry):
            reason = redact(entry.reason[:MAX_REASON_CHARS])
            self._publish(SyscallBlocked(entry.agent, entry.name, entry.call, entry.rule, reason))
        if entry.intent is None and self._files.disk_full and entry.kind not in RESERVED_FOR:
            self._limiter.count(entry, now)
        elif len(self._queue) >= MAX_QUEUED_NOTES:
            self._limiter.count(entry, now)
            self._write_by(now + RETRY_DELAY)
        else:
            self._queue.append(QueuedEntry(entry, time.time(), repeated))
            self._write_by(now + NOTE_DELAY)

    def close(self, outcome: str) -> None:
        """Have the queue and then KERNEL_STOP written; nothing after that."""
        self._closing = True
        self._count_surplus()
        self._queue.append(QueuedEntry(kernel_entry(STOPPED, "", outcome), time.time()))
        self._write_by(-float("inf"))

    # -- Reading and settings --------------------------------------------------------------------------------------

    async def newest(self, query: Query, limit: int) -> Sequence[Row]:
        return await trio.to_thread.run_sync(
            audit_query.read_newest, self.directory, query, limit, limiter=self._read_limiter
        )

    async def oldest(self, query: Query, limit: int) -> Sequence[Row]:
        return await trio.to_thread.run_sync(
            audit_query.read_oldest, self.directory, query, limit, limiter=self._read_limiter
        )

    @property
    def config(self) -> Mapping[str, bool]:
        """For each category: whether allowed calls without an intent are logged. All other entries always are."""
        return {category: category not in self._disabled for category in sorted(SWITCHABLE)}

    def configure(self, wanted: Mapping[str, bool]) -> None:
        """Switch categories on and off, until the kernel stops."""
        self._disabled = {category for category, on in {**self.config, **wanted}.items() if not on}

    def _is_disabled(self, entry: Entry) -> bool:
        return entry.decision == "allow" and entry.intent is None and category_of(entry.call) in self._disabled

    # -- The writer ------------------------------------------------------------------------------------------------

    def _write_by(self, deadline: float) -> None:
        if deadline < self._deadline:
            self._deadline = deadline
            self._wake.set()

    async def serve(self) -> None:
        """Write until the log is closed and the queue is empty; cancellation waits for that, too."""
        with trio.CancelScope(shield=True):
            while self._queue or self._writing or not self._closing:
                self._wake = trio.Event()
                if self._writing:
                    await self._wake.wait()
                elif trio.current_time() < self._deadline:
                    with trio.move_on_at(self._deadline):
                        await self._wake.wait()
                else:
                    self._begin_write()
        if self._lost:
            log.error("the audit log is closed; %d entries couldn't be written and are lost", self._lost)

    def _take_group(self) -> list[QueuedEntry | _Intent]:
        group: list[QueuedEntry | _Intent] = []
        while self._queue and len(group) < MAX_COMMIT_ROWS - 1:  # one more for the count of lost entries
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
            told = (escape_controls(entry.about), escape_controls(entry.name))
            log.warning("KILL of %s by %s is executed without an entry in the audit log, which can't be written", *told)
        self._unannounced += 1
        self._write_by(trio.current_time() + RETRY_DELAY)

    def _count_surplus(self) -> None:
        if self._files.disk_full and not self._closing:
            return
        if self._unannounced:
            about = f"{self._unannounced} KILLs were executed that couldn't be logged before"
            self._queue.append(QueuedEntry(kernel_entry(LOST, about, "lost"), time.time(), self._unannounced))
            self._unannounced = 0
        if self._limiter.counted:
            for each in self._limiter.take_counted(trio.current_time()):
                self._queue.append(QueuedEntry(each.entry, time.time(), each.count))
                if _is_refusal(each.sample):
                    entry = each.entry
                    self._publish(SyscallBlocked(entry.agent, entry.name, entry.call, None, entry.about))

    def _begin_write(self) -> None:
        """Have a thread write what is queued."""
        self._count_surplus()
        group = _Group(self._take_group(), self._lost, self._files.last)
        entries = [item.queued if isinstance(item, _Intent) else item for item in group.items]
        if group.lost:
            about = f"{group.lost} entries couldn't be written"
            entries.insert(0, QueuedEntry(kernel_entry(LOST, about, "lost"), time.time(), group.lost))
        if entries or self._files.disk_full:
            self._writing = True
            try:
                trio.lowlevel.start_thread_soon(partial(self._write, group, entries), lambda result: result.unwrap())
            except RuntimeError as error:  # no thread can be started
                self._token.run_sync_soon(self._end_write, group, Error(error))

    def _write(self, group: _Group, entries: Sequence[QueuedEntry]) -> None:
        """In the thread: write the rows; then sync the head file while the callers go on and further rows are made."""
        self._token.run_sync_soon(self._end_write, group, capture(self._files.append, entries))
        try:
            self._files.sync_head()
        except DatabaseError as error:  # it is tried again before further rows are committed
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._note_failure, error)

    def _end_write(self, group: _Group, result: Outcome[int]) -> None:
        self._writing = False
        if isinstance(result, Error):  # begun intents get an answer in any case
            assert isinstance(result.error, Exception), "a thread gets no signals"
            self._handle_write_error(result.error, group)
        elif group.items or group.lost:
            if self._failing:
                log.warning("the audit log can be written again; %d entries were lost", group.lost)
            self._failing, self._lost = False, self._lost - group.lost
            for number, item in enumerate(group.items, result.unwrap() + bool(group.lost)):
                if isinstance(item, _Intent):
                    trio.lowlevel.reschedule(item.waiter, Value(number))
        if self._files.disk_full:
            self._write_by(trio.current_time() + RETRY_DELAY)
        self._wake.set()

    def _note_failure(self, error: Exception) -> None:
        if not self._failing:
            log.error("the audit log can't be written; calls that must be logged are refused: %s", error)
        self._failing = True

    def _handle_write_error(self, error: Exception, group: _Group) -> None:
        """Refuse the intents, except KILL; count the notes as lost, unless they were written after all."""
        self._note_failure(error)
        written = self._files.last != group.last
        self._lost -= group.lost if written else 0
        why = error if isinstance(error, DatabaseError) else f"{display_path(self.directory)}: {error}"
        for item in group.items:
            if isinstance(item, _Intent):  # only the operator may learn the names of the host's files
                if item.queued.entry.call == KILL:
                    self._count_unannounced(item.queued.entry)
                    trio.lowlevel.reschedule(item.waiter, Value(None))
                    continue
                told = why if item.queued.entry.kind == "operator" else "the kernel's log says why"
                trio.lowlevel.reschedule(
                    item.waiter, Error(Unavailable(f"not done: the audit log can't be written: {told}"))
                )
            elif not written:
                self._lost += item.repeated
        if self._lost:
            self._write_by(trio.current_time() + RETRY_DELAY)


def _is_refusal(entry: Entry) -> bool:
    """Whether a rule, or a person, refused the call."""
    return entry.decision != "allow" and entry.outcome in REFUSALS
