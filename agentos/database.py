"""One SQLite file with one writer: units of work that wait are committed together, and each stands or falls alone.

Every owner keeps its own tables and its own SQL; here are only the file, its connection and the queue to it. A unit of
work is a function that gets the connection, in a thread: the event loop never waits for the disk. It runs in a
savepoint of its own inside the group's transaction, sees all that was queued before it, and hands back values (no
cursor). It changes nothing but through the connection, for it may be run again, and neither begins nor commits (which
``executescript`` does, too).

What was acknowledged outlives the kernel's own death, kill -9 included. When the power fails, the last commits may be
missing, though the file is whole: SQLite in WAL mode with synchronous=NORMAL. Who can't bear that opens a file of its
own by :func:`connect` with ``durable``, and is its one writer.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import trio
from attrs import define
from outcome import Error, Outcome, capture

from agentos.private_files import check_file, describe, open_file, shown

log = logging.getLogger(__name__)

MOST_WAITING = 1000  # units of work; and as many are committed together at most
APPLICATION_ID = 0x41474E54  # "AGNT", in the file's header
BUSY = 5.0  # seconds to wait for somebody else who writes to the file: a person with a shell, a backup

T = TypeVar("T")
Schemas: TypeAlias = Mapping[str, Sequence[str]]
"""By owner the statements that make its tables, one after the other: they are never changed, only added to."""

_AWAY = "move it away, with what is named like it and ends in -wal and -shm, and a new one is begun"
_FIXES = {
    sqlite3.SQLITE_FULL: "free some room on its file system",
    sqlite3.SQLITE_IOERR: "its file system is full or fails",
    sqlite3.SQLITE_READONLY: "let this user write to it, or choose another directory with --state-dir",
    sqlite3.SQLITE_CANTOPEN: "let this user write there, or choose another directory with --state-dir",
    sqlite3.SQLITE_BUSY: "another program holds it: end that one",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: put back a copy that was made of it, or {_AWAY}",
    sqlite3.SQLITE_NOTADB: f"it is something else: {_AWAY}",
}


class DatabaseError(Exception):
    """The file can't be opened, read or written; the text names it and says what to do. It is left as it was."""


@define(eq=False)
class _Unit:
    """Work in the queue; ``what`` names it in the log, should it fail and nobody wait for it."""

    work: Callable[[sqlite3.Connection], Any]
    what: str | None = None
    state: Literal["waiting", "begun", "withdrawn"] = "waiting"
    result: Outcome[Any] | None = None
    waiter: trio.lowlevel.Task | None = None


@contextlib.asynccontextmanager
async def open_database(path: Path, schemas: Schemas) -> AsyncIterator["Database"]:
    """The database at ``path``, made if there is none, with every owner's tables; :class:`DatabaseError`.

    It lasts until the block is left, cancelled or not: what was queued by then is written first. So who uses it runs
    inside.
    """
    failure: BaseException | None = None
    connection = await trio.to_thread.run_sync(connect, path, schemas)
    try:
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[_Unit](MOST_WAITING)
            nursery.start_soon(_Writer(path, connection).serve, receive)
            with send:
                try:
                    yield Database(path, send)
                except BaseException as error:  # noqa: ASYNC103, ASYNC104 - it is raised below
                    failure = error
        if failure is not None:
            raise failure  # outside the nursery, which would wrap it in a group
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)


class Database:
    """Where units of work are handed in."""

    def __init__(self, path: Path, queue: trio.MemorySendChannel[_Unit]) -> None:
        self._path, self._queue = path, queue

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` returned, once it is committed. Where too many wait already, it waits for room, too.

        Whatever is raised, nothing of it was written: what ``work`` itself raised, :class:`DatabaseError` where the
        file can't be written, and ``Cancelled``, which comes only while it hasn't begun. Reading goes this way, too.
        """
        unit = _Unit(work)
        try:
            await self._queue.send(unit)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise DatabaseError(f"{shown(self._path)}: it was closed") from None

        def withdraw(_raise_cancel: object) -> trio.lowlevel.Abort:
            if unit.state == "begun":
                return trio.lowlevel.Abort.FAILED
            unit.state = "withdrawn"
            return trio.lowlevel.Abort.SUCCEEDED

        if unit.result is None:
            unit.waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(withdraw)
            assert unit.result is not None
        result: T = unit.result.unwrap()
        return result

    def submit(self, work: Callable[[sqlite3.Connection], object], what: str) -> None:
        """Queue it and don't wait. If it fails later, the log says so and calls it ``what``.

        :class:`DatabaseError` where there is no room in the queue: it is the caller who knows what that means.
        """
        try:
            self._queue.send_nowait(_Unit(work, what=what))
        except trio.WouldBlock:
            raise DatabaseError(f"{shown(self._path)}: {MOST_WAITING} writes wait already") from None
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise DatabaseError(f"{shown(self._path)}: it was closed") from None


class _Writer:
    """The one who uses the connection."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._turn = trio.CapacityLimiter(1)  # its own: it needn't wait until others are done with theirs

    async def serve(self, queue: trio.MemoryReceiveChannel[_Unit]) -> None:
        """Until nobody can queue anything any more; cancellation has to wait for that, too."""
        with trio.CancelScope(shield=True):
            async for unit in queue:
                units = [unit]
                with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
                    while len(units) < MOST_WAITING:
                        units.append(queue.receive_nowait())
                await self._answer([unit for unit in units if unit.state == "waiting"])

    async def _answer(self, units: Sequence[_Unit]) -> None:
        for unit in units:
            unit.state = "begun"
        try:
            results = await trio.to_thread.run_sync(self._commit, units, limiter=self._turn)
        except Exception as error:  # no thread to be had; who has begun is told in any case
            results = [Error(DatabaseError(f"{shown(self._path)}: {error}")) for _ in units]
        for unit, result in zip(units, results, strict=True):
            unit.result = result
            if unit.waiter is not None:
                trio.lowlevel.reschedule(unit.waiter)
            elif unit.what is not None and isinstance(result, Error):
                log.error("%s: not written: %s", unit.what, result.error)

    def _commit(self, units: Sequence[_Unit]) -> Sequence[Outcome[Any]]:
        """All of them in one transaction; where that can't be committed, each in one of its own: whose fault is it?"""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._roll_back()
            return [Error(explained(self._path, error)) for _ in units]
        try:
            results = [self._alone(unit.work) for unit in units]
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(units) == 1:
                return [Error(explained(self._path, error))]
            return [result for unit in units for result in self._commit([unit])]
        return results

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # then the next BEGIN fails, and it is tried again
                self._connection.execute("ROLLBACK")

    def _alone(self, work: Callable[[sqlite3.Connection], T]) -> Outcome[T]:
        self._connection.execute("SAVEPOINT alone")
        result = capture(work, self._connection)
        if isinstance(result, Error):
            if not self._connection.in_transaction:  # SQLite itself gave up: no room, no memory, a failing disk
                raise result.error
            self._connection.execute("ROLLBACK TO alone")
            if _fix(result.error) is not None:
                result = Error(explained(self._path, result.error))
        self._connection.execute("RELEASE alone")
        return result


def connect(path: Path, schemas: Schemas, *, durable: bool = False) -> sqlite3.Connection:
    """The one connection that writes to the file at ``path``, in a thread; made, checked and brought up to date.

    ``durable``: what was committed outlives a power failure, too, at the price of waiting for the disk at each commit;
    and the file isn't read from end to end to see whether it is whole, for its owner has a check of its own.
    """
    try:
        fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            os.fchmod(fd, 0o600)
            made = os.fstat(fd)
        finally:
            os.close(fd)
        for end in ("-wal", "-shm", "-journal"):
            check_file(Path(f"{path}{end}"))
    except OSError as error:
        raise DatabaseError(describe(error, path)) from None
    try:
        with contextlib.ExitStack() as undo:
            connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
            undo.callback(connection.close)
            _check_opened(connection, path, made)
            _prepare(connection, path, schemas, durable)
            undo.pop_all()
            return connection
    except sqlite3.Error as error:
        raise explained(path, error) from None


def _check_opened(connection: sqlite3.Connection, path: Path, made: os.stat_result) -> None:
    """SQLite turns a held directory's path into the one it has then, which can be renamed before it opens the file."""
    (_, _, opened) = connection.execute("PRAGMA database_list").fetchone()
    try:
        same = os.path.samestat(os.stat(opened), made)
    except OSError:
        same = False
    if not same:
        raise DatabaseError(f"{shown(path)}: another file was put in its place while it was opened: start again")


def _prepare(connection: sqlite3.Connection, path: Path, schemas: Schemas, durable: bool) -> None:
    """Find out whether it is ours and whole, before anything is written; then see to the tables."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise DatabaseError(
            f"{shown(path)}: a database of another program: move it away, or choose another --state-dir"
        )
    (found,) = ("ok",) if durable else connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DatabaseError(f"{shown(path)}: {' '.join(found.split())}: {_FIXES[sqlite3.SQLITE_CORRUPT]}")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise DatabaseError(
            f"{shown(path)}: no write-ahead log is possible there: choose another directory with --state-dir"
        )
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("CREATE TABLE IF NOT EXISTS owners (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    versions = dict(connection.execute("SELECT name, version FROM owners"))
    for owner, steps in schemas.items():
        if (version := versions.get(owner, 0)) > len(steps):
            raise DatabaseError(
                f"{shown(path)}: written by a newer version (it has {owner} {version}, this one knows {len(steps)}): "
                "use that one, or choose another directory with --state-dir"
            )
        for step in steps[version:]:
            connection.execute(step)
        connection.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (owner, len(steps)))
    connection.execute("COMMIT")


def _fix(error: BaseException) -> str | None:
    """What to do where the file is the trouble, not what was to be done with it."""
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return None if code is None else _FIXES.get(code & 0xFF)  # the rest says more exactly what failed


def explained(path: Path, error: BaseException) -> DatabaseError:
    """The same for people: which file, what is wrong with it, and what to do."""
    fix = _fix(error)
    return DatabaseError(f"{shown(path)}: {error}: {fix}" if fix else f"{shown(path)}: {error}")
