"""SQLite database with a single writer: queued units of work share a commit, but each succeeds or fails alone.

Every owner keeps its own tables and its own SQL; this module has only the queue; the file is opened and checked by
:mod:`agentos.database_file`. A unit of work is a function that gets the connection and runs in a thread: the event loop
never waits for the disk. It runs in its own savepoint inside the shared transaction, sees everything queued before it,
and returns values (no cursor). It must change nothing except through the connection, because it may be run again, and
must neither begin nor commit (as ``executescript`` does, too).

Acknowledged commits survive the kernel's death, including kill -9. After a power failure the last commits may be
missing, but the file is intact: SQLite in WAL mode with synchronous=NORMAL, or FULL if it is opened ``durable``. An
owner that can't accept this opens a file of its own by :func:`~agentos.database_file.connect` with ``durable``, and is
its only writer.
"""

import contextlib
import itertools
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias, TypeVar

import trio
from attrs import define
from msgspec.structs import replace
from outcome import Error, Outcome, Value, capture

from agentos.finishing import run_and_finish
from agentos.private_files import display_path

from .database_file import (
    WITNESS,
    CheckIdentity,
    DatabaseError,
    Identity,
    Schemas,
    accept_any,
    connect,
    explain_error,
    find_remedy,
    identify,
)

__all__ = ["Batch", "Database", "DatabaseError", "Done", "open_database"]

log = logging.getLogger(__name__)

MAX_QUEUED_UNITS = 1000  # units of work in the queue, and in one commit
TURN_SECONDS = 0.00025  # seconds of telling outcomes before other tasks run

T = TypeVar("T")

Batch: TypeAlias = Callable[[Sequence[Any], sqlite3.Connection], Sequence[Outcome[Any]]]
"""Does the work of several items at once, in their order, and returns the outcome of each.

What fails is not written. Each statement gives up the GIL and waits for it again, up to 5 ms where the event loop is
busy: one statement for a hundred items is that much faster.
"""

Done: TypeAlias = Callable[[Outcome[Any]], object]
"""Takes the outcome of queued work, in the event loop; must not raise."""


@define(eq=False)
class _Unit:
    """Queued work; ``what`` names it in the log if it fails and ``done`` is None.

    Instead of ``work``, a ``batch`` does that of ``item`` together with its neighbours in the queue that have the same
    ``batch``.
    """

    work: Callable[[sqlite3.Connection], Any] | None = None
    what: str | None = None
    batch: "Batch | None" = None
    item: Any = None
    done: Done | None = None
    state: Literal["waiting", "begun", "withdrawn"] = "waiting"

    def withdraw(self) -> bool:
        """Drop the work unless it has begun; returns whether it is dropped: then ``done`` isn't called."""
        if self.state == "waiting":
            self.state = "withdrawn"
        return self.state == "withdrawn"


@contextlib.asynccontextmanager
async def open_database(
    path: Path, schemas: Schemas, check: CheckIdentity = accept_any, *, durable: bool = False
) -> AsyncIterator["Database"]:
    """Open or create the database at ``path`` with every owner's tables; raises :class:`DatabaseError`.

    It stays open until the block is left, also when cancelled: everything queued by then is written first. So all users
    of the database must run inside the block. ``durable``: a commit waits for the disk, and survives a power failure.
    """
    schemas = {"witness": WITNESS, **schemas}
    connection = await trio.to_thread.run_sync(partial(connect, path, schemas, check=check))
    if durable:
        connection.execute("PRAGMA synchronous = FULL")
    try:
        database = Database(path, await trio.to_thread.run_sync(identify, connection))
        writer = _Writer(path, connection)
        async with run_and_finish(partial(writer.serve, database), lambda failure: database.close()):
            yield database
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)


class Database:
    """The queue for units of work."""

    def __init__(self, path: Path, identity: Identity | None = None) -> None:
        self.identity = identity or Identity()  # after the last commit
        self._path = path
        self._units: deque[_Unit] = deque()
        self._open = True
        self._changed = trio.lowlevel.ParkingLot()  # the writer, until there are units or it is closed
        self._room = trio.lowlevel.ParkingLot()  # tasks that wait for room

    async def write(self, work: Callable[[sqlite3.Connection], T], announce: Callable[[T], None] | None = None) -> T:
        """Run ``work`` and return its result once it is committed. Waits for room if the queue is full.

        If this raises, nothing of ``work`` was written: an exception of ``work`` itself, :class:`DatabaseError` if the
        file can't be written, or ``Cancelled``, which is only raised before ``work`` has begun. Reads use this, too.
        ``announce`` is called with the result, in the order of the commits, before this returns.
        """
        result: T = await self._queue_and_wait(_Unit(work), announce)
        return result

    async def write_in_batch(self, batch: Batch, item: object, announce: Callable[[Any], None] | None = None) -> Any:
        """Like :meth:`write` for one item; those that wait at the same time are passed to ``batch`` together."""
        return await self._queue_and_wait(_Unit(batch=batch, item=item), announce)

    def begin(self, work: Callable[[sqlite3.Connection], object], done: Done) -> Callable[[], bool]:
        """Like :meth:`write` without a task: ``done`` is called with the outcome, in the order of the commits.

        Returns a function that drops the work unless it has begun, and tells whether it did: then ``done`` isn't
        called. Doesn't wait for room: its caller has a limit of its own. Raises :class:`DatabaseError` if closed.
        """
        return self._begin(_Unit(work), done)

    def begin_in_batch(self, batch: Batch, item: object, done: Done) -> Callable[[], bool]:
        """Like :meth:`begin` for one item of a batch."""
        return self._begin(_Unit(batch=batch, item=item), done)

    def _begin(self, unit: _Unit, done: Done) -> Callable[[], bool]:
        unit.done = done
        self._append(unit)
        return unit.withdraw

    async def _queue_and_wait(self, unit: _Unit, announce: Callable[[Any], None] | None) -> Any:
        while self._is_full:
            await self._room.park()
        task = trio.lowlevel.current_task()

        def go_on(result: Outcome[Any]) -> None:
            if announce is not None and isinstance(result, Value):
                announce(result.value)
            trio.lowlevel.reschedule(task, result)

        unit.done = go_on
        self._append(unit)

        def withdraw(_raise_cancel: object) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.SUCCEEDED if unit.withdraw() else trio.lowlevel.Abort.FAILED

        return await trio.lowlevel.wait_task_rescheduled(withdraw)

    def submit(self, work: Callable[[sqlite3.Connection], object], what: str) -> None:
        """Queue ``work`` without waiting. A later failure is logged under the name ``what``.

        Raises :class:`DatabaseError` if the queue is full: only the caller knows what that means.
        """
        if self._is_full:
            raise DatabaseError(f"{display_path(self._path)}: {MAX_QUEUED_UNITS} writes are queued already")
        self._append(_Unit(work, what=what))

    @property
    def _is_full(self) -> bool:
        return self._open and len(self._units) >= MAX_QUEUED_UNITS

    def _append(self, unit: _Unit) -> None:
        if not self._open:
            raise DatabaseError(f"{display_path(self._path)}: it was closed")
        self._units.append(unit)
        self._changed.unpark_all()

    def close(self) -> None:
        """Accept no more work; queued work is still done."""
        self._open = False
        self._changed.unpark_all()
        self._room.unpark_all()

    async def take(self) -> Sequence[_Unit]:
        """Wait for queued units, and remove and return them; none once the queue is closed and empty."""
        while self._open and not self._units:
            await self._changed.park()
        units = [self._units.popleft() for _ in range(min(len(self._units), MAX_QUEUED_UNITS))]
        self._room.unpark_all()
        return units


class _Writer:
    """The only user of the connection."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._limiter = trio.CapacityLimiter(1)  # its own limiter: it needn't wait for other threads
        self._commits = 0  # since they were last taken

    def _take_commits(self) -> int:
        commits, self._commits = self._commits, 0
        return commits

    async def serve(self, queue: Database) -> None:
        """Serve until the queue is closed and empty; not interrupted by cancellation."""
        with trio.CancelScope(shield=True):
            while units := await queue.take():
                await self._run_units([unit for unit in units if unit.state == "waiting"])
                queue.identity = replace(queue.identity, commits=queue.identity.commits + self._take_commits())

    async def _run_units(self, units: Sequence[_Unit]) -> None:
        for unit in units:
            unit.state = "begun"
        try:
            results = await trio.to_thread.run_sync(self._commit, units, limiter=self._limiter)
        except Exception as error:  # no thread is available; units that have begun get a result in every case
            results = [Error(DatabaseError(f"{display_path(self._path)}: {error}")) for _ in units]
        turn_ends = perf_counter() + TURN_SECONDS
        for unit, result in zip(units, results, strict=True):
            if unit.done is not None:
                unit.done(result)
            elif unit.what is not None and isinstance(result, Error):
                log.error("%s: not written: %s", unit.what, result.error)
            if perf_counter() > turn_ends:
                await trio.lowlevel.checkpoint()
                turn_ends = perf_counter() + TURN_SECONDS

    def _commit(self, units: Sequence[_Unit]) -> Sequence[Outcome[Any]]:
        """Commit all units in one transaction; if that fails, each in its own, to find the one that fails."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._connection.total_changes
        except sqlite3.Error as error:
            self._roll_back()
            return [Error(explain_error(self._path, error)) for _ in units]
        try:
            results: list[Outcome[Any]] = []
            for batch, together in itertools.groupby(units, attrgetter("batch")):
                if batch is not None:
                    results += self._run_batch(batch, [unit.item for unit in together])
                else:
                    results += [self._run_in_savepoint(unit.work) for unit in together if unit.work is not None]
            changes = self._connection.total_changes != before  # some only read
            if changes:
                self._connection.execute("UPDATE witness SET commits = commits + 1")
            self._connection.execute("COMMIT")
            self._commits += changes
        except Exception as error:
            self._roll_back()
            if len(units) == 1:
                return [Error(explain_error(self._path, error))]
            return [result for unit in units for result in self._commit([unit])]
        return results

    def _run_batch(self, batch: Batch, items: Sequence[Any]) -> Sequence[Outcome[Any]]:
        """The outcome of each item; if they fail together, each alone, to find the one that fails."""
        result = self._run_in_savepoint(partial(batch, items))
        if isinstance(result, Value):
            return list(result.value)
        return [result] if len(items) == 1 else [each for item in items for each in self._run_batch(batch, [item])]

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # then the next BEGIN fails, and it is tried again
                self._connection.execute("ROLLBACK")

    def _run_in_savepoint(self, work: Callable[[sqlite3.Connection], T]) -> Outcome[T]:
        self._connection.execute("SAVEPOINT alone")
        result = capture(work, self._connection)
        if isinstance(result, Error):
            if not self._connection.in_transaction:  # SQLite itself gave up: no room, no memory, a failing disk
                raise result.error
            self._connection.execute("ROLLBACK TO alone")
            if find_remedy(result.error) is not None:
                result = Error(explain_error(self._path, result.error))
        self._connection.execute("RELEASE alone")
        return result
