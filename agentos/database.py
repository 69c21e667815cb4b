"""SQLite database with a single writer: queued units of work share a commit, but each succeeds or fails alone.

Every owner keeps its own tables and its own SQL; this module has only the file, its connection and the queue. A unit of
work is a function that gets the connection and runs in a thread: the event loop never waits for the disk. It runs in
its own savepoint inside the shared transaction, sees everything queued before it, and returns values (no cursor). It
must change nothing except through the connection, because it may be run again, and must neither begin nor commit (as
``executescript`` does, too).

Acknowledged commits survive the kernel's death, including kill -9. After a power failure the last commits may be
missing, but the file is intact: SQLite in WAL mode with synchronous=NORMAL, or FULL if it is opened ``durable``. An
owner that can't accept this opens a file of its own by :func:`connect` with ``durable``, and is its only writer.
"""

import contextlib
import itertools
import logging
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias, TypeVar

import trio
from attrs import define
from msgspec import Struct
from msgspec.structs import replace
from outcome import Error, Outcome, Value, capture

from agentos.finishing import run_and_finish
from agentos.private_files import check_file, describe_error, display_path, open_file

log = logging.getLogger(__name__)

MAX_QUEUED_UNITS = 1000  # units of work in the queue, and in one commit
TURN_SECONDS = 0.00025  # seconds of telling outcomes before other tasks run
APPLICATION_ID = 0x41474E54  # "AGNT", in the file's header
BUSY_TIMEOUT = 5.0  # seconds to wait for other writers of the file: a person with a shell, a backup

WITNESS: Sequence[str] = ("CREATE TABLE witness (id TEXT NOT NULL, commits INTEGER NOT NULL)",)  # of open_database

T = TypeVar("T")
Schemas: TypeAlias = Mapping[str, Sequence[str]]
"""For each owner, the statements that create its tables, in order; never changed, only appended to."""

Batch: TypeAlias = Callable[[Sequence[Any], sqlite3.Connection], Sequence[Outcome[Any]]]
"""Does the work of several items at once, in their order, and returns the outcome of each.

What fails is not written. Each statement gives up the GIL and waits for it again, up to 5 ms where the event loop is
busy: one statement for a hundred items is that much faster.
"""

_MOVE_AWAY = "move it away, with its -wal and -shm files, and start once with --accept-lost-state"
_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some room on its file system",
    sqlite3.SQLITE_IOERR: "check its file system: it is full or failing",
    sqlite3.SQLITE_READONLY: "let this user write to it, or choose another directory with --state-dir",
    sqlite3.SQLITE_CANTOPEN: "let this user write there, or choose another directory with --state-dir",
    sqlite3.SQLITE_BUSY: "another program has it locked: stop that program",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: restore a backup, or {_MOVE_AWAY}",
    sqlite3.SQLITE_NOTADB: f"{_MOVE_AWAY}",
}


class Identity(Struct, frozen=True):
    """Which database it is, and how many commits it has had."""

    id: str = ""
    commits: int = 0


CheckIdentity: TypeAlias = Callable[[Identity | None], None]
"""Gets the identity of a file before anything is written, None for one that is missing or empty. May raise."""


def _accept(identity: Identity | None) -> None:
    """Take any file."""


class DatabaseError(Exception):
    """The file can't be opened, read or written; the text names it and says what to do. It is left unchanged."""


Done: TypeAlias = Callable[[Outcome[Any]], object]
"""Takes the outcome of queued work, in the event loop; must not raise."""


@define(eq=False)
class _Unit:
    """Queued work; ``what`` names it in the log if it fails and ``done`` is None.

    ``batch``, if set, does the work of ``item`` together with its neighbours in the queue that have the same ``batch``.
    """

    work: Callable[[sqlite3.Connection], Any]
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
    path: Path, schemas: Schemas, check: CheckIdentity = _accept, *, durable: bool = False
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
        database = Database(path, await trio.to_thread.run_sync(_identify, connection))
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
        return await self._queue_and_wait(_batched(batch, item), announce)

    def begin(self, work: Callable[[sqlite3.Connection], object], done: Done) -> Callable[[], bool]:
        """Like :meth:`write` without a task: ``done`` is called with the outcome, in the order of the commits.

        Returns a function that drops the work unless it has begun, and tells whether it did: then ``done`` isn't
        called. Doesn't wait for room: its caller has a limit of its own. Raises :class:`DatabaseError` if closed.
        """
        return self._begin(_Unit(work), done)

    def begin_in_batch(self, batch: Batch, item: object, done: Done) -> Callable[[], bool]:
        """Like :meth:`begin` for one item of a batch."""
        return self._begin(_batched(batch, item), done)

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


def _batched(batch: Batch, item: object) -> _Unit:
    return _Unit(partial(batch, [item]), batch=batch, item=item)


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
                if batch is None:
                    results += [self._run_in_savepoint(unit.work) for unit in together]
                else:
                    results += self._run_batch(batch, [unit.item for unit in together])
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
            if _find_remedy(result.error) is not None:
                result = Error(explain_error(self._path, result.error))
        self._connection.execute("RELEASE alone")
        return result


def connect(
    path: Path, schemas: Schemas, *, durable: bool = False, check: CheckIdentity = _accept
) -> sqlite3.Connection:
    """Open the only writing connection to the file at ``path``; the file is created, checked and migrated. Blocks.

    ``durable``: commits survive a power failure, too, but each waits for the disk. The file isn't checked for
    corruption from end to end, because the owner of such a file has its own check. ``check`` may refuse the file.
    """
    if not path.is_file() or not path.stat().st_size:
        check(None)
        check = _accept  # it has decided
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
        raise DatabaseError(describe_error(error, path)) from None
    try:
        with contextlib.ExitStack() as undo:
            connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
            undo.callback(connection.close)
            _check_opened(connection, path, made)
            _prepare(connection, path, schemas, durable, check)
            undo.pop_all()
            return connection
    except sqlite3.Error as error:
        raise explain_error(path, error) from None


def _check_opened(connection: sqlite3.Connection, path: Path, made: os.stat_result) -> None:
    """Check that SQLite opened the right file: it resolves a held directory's path, which may be renamed since."""
    (_, _, opened) = connection.execute("PRAGMA database_list").fetchone()
    try:
        same = os.path.samestat(os.stat(opened), made)
    except OSError:
        same = False
    if not same:
        raise DatabaseError(f"{display_path(path)}: it was replaced while it was opened: start again")


def _prepare(connection: sqlite3.Connection, path: Path, schemas: Schemas, durable: bool, check: CheckIdentity) -> None:
    """Check that the file is ours and intact before anything is written; then create or migrate the tables."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise DatabaseError(
            f"{display_path(path)}: a database of another program: move it away, or choose another --state-dir"
        )
    (found,) = ("ok",) if durable else connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DatabaseError(f"{display_path(path)}: {' '.join(found.split())}: {_REMEDIES[sqlite3.SQLITE_CORRUPT]}")
    check(_read_identity(connection))
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise DatabaseError(
            f"{display_path(path)}: no write-ahead log possible there: choose another directory with --state-dir"
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
                f"{display_path(path)}: written by a newer version "
                f"(it has {owner} {version}, this one knows {len(steps)}): "
                "use that one, or choose another directory with --state-dir"
            )
        for step in steps[version:]:
            connection.execute(step)
        connection.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (owner, len(steps)))
    connection.execute("COMMIT")


def _read_identity(connection: sqlite3.Connection) -> Identity | None:
    """None without any table; without an id for a file that was made before there were witnesses."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    row = connection.execute("SELECT id, commits FROM witness").fetchone() if "witness" in tables else None
    return Identity(*row) if row is not None else Identity()


def _identify(connection: sqlite3.Connection) -> Identity:
    """The identity, which a new file gets; what it has had is then safe on disk. Blocks."""
    if not (found := _read_identity(connection)) or not found.id:
        found = Identity(secrets.token_hex(8))
        connection.execute("INSERT INTO witness VALUES (?, ?)", (found.id, found.commits))
    connection.execute("PRAGMA wal_checkpoint(FULL)")
    return found


def _find_remedy(error: BaseException) -> str | None:
    """The remedy if the error is caused by the file and not by the work."""
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return None if code is None else _REMEDIES.get(code & 0xFF)  # the higher bits only give details


def explain_error(path: Path, error: BaseException) -> DatabaseError:
    """The error for people: which file, what is wrong with it, and what to do."""
    fix = _find_remedy(error)
    return DatabaseError(f"{display_path(path)}: {error}: {fix}" if fix else f"{display_path(path)}: {error}")
