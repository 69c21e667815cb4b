"""Files of the audit log: segments of rows in SQLite, each with a head file; one writer, any number of readers.

``000001.db`` is SQLite, with a table of rows. ``000001.head`` is append-only: one line per commit, with the number and
hash of its last row and the time. A line is written when its rows are safe on disk, and before callers are told; it is
safe on disk itself before further rows are written. So after a crash or a power failure the rows are ahead of the head
by one commit at most, and never behind it; the missing line is written before anything else.
"""

import contextlib
import errno
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from msgspec import Struct

from agentos.database import DatabaseError
from agentos.database_file import connect, explain_error
from agentos.private_files import describe_error, display_path, open_file

from .chain import Link, QueuedEntry, Row, chain_rows
from .reserve import Reserve

MAX_COMMIT_ROWS = 1000  # rows in one commit
CACHE_KIB = 64  # of the file's pages: rows are only appended, and SQLite's usual 2 MiB would fill with what it wrote
SCHEMAS = {
    "audit": [
        "CREATE TABLE entries (seq INTEGER PRIMARY KEY, at REAL NOT NULL, agent INTEGER NOT NULL, name TEXT NOT NULL,"
        " kind TEXT NOT NULL, call TEXT NOT NULL, about TEXT NOT NULL, decision TEXT NOT NULL, rule TEXT NOT NULL,"
        " phase TEXT NOT NULL, outcome TEXT NOT NULL, duration REAL, intent INTEGER, repeated INTEGER NOT NULL,"
        " together INTEGER NOT NULL, hash TEXT NOT NULL) STRICT"
    ]
}
_COLUMNS = ", ".join(Row._fields)
_INSERT = f"INSERT INTO entries ({_COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"  # noqa: S608 - our own names
SELECT = f"SELECT {_COLUMNS} FROM entries"  # noqa: S608
_FILE_NAME = re.compile(r"([0-9]{6})\.(?:db|head)")
_HEAD_LINE = re.compile(rb"([1-9][0-9]{0,17}) ([0-9a-f]{64}) [0-9]+\.[0-9]{3}\n")


class SegmentFiles(Struct, frozen=True):
    """The files of one segment, whether they exist or not."""

    directory: Path
    number: int

    @property
    def rows(self) -> Path:
        return self.directory / f"{self.number:06}.db"

    @property
    def head(self) -> Path:
        return self.directory / f"{self.number:06}.head"

    @property
    def next(self) -> "SegmentFiles":
        return SegmentFiles(self.directory, self.number + 1)

    @property
    def files(self) -> tuple[Path, ...]:
        """Both files, and those that SQLite makes beside them."""
        return (self.rows, *(Path(f"{self.rows}{end}") for end in ("-wal", "-shm")), self.head)

    def remove(self) -> None:
        for path in self.files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def list_segments(directory: Path) -> list[SegmentFiles]:
    """The segments with at least one file, oldest first."""
    found = (_FILE_NAME.fullmatch(name) for name in os.listdir(directory))
    return [SegmentFiles(directory, number) for number in sorted({int(name[1]) for name in found if name})]


class Segment:
    """The segment that is written to, by one thread at a time; raises :class:`DatabaseError` on failure.

    ``last`` is the end of the chain. It is kept in memory and never read again, so the chain can't continue from a row
    that was modified on disk. ``headed`` says whether the head file contains it already.

    After :meth:`append` callers may be told; :meth:`sync_head` is then due, in any thread. The next rows are prepared
    meanwhile, and committed afterwards.
    """

    def __init__(self, place: SegmentFiles, last: Link, headed: bool = True) -> None:
        self.place, self.last, self._headed = place, last, headed
        self.size = 0  # bytes
        self._head_lock, self._head_synced = Lock(), True
        self._reserve: Reserve | None = None
        with contextlib.ExitStack() as undo:
            self._head = _open_head(place.head)  # before there are any rows, so that rows always have a head file
            undo.callback(os.close, self._head)
            self._connection = connect(place.rows, SCHEMAS, durable=True)
            undo.callback(self._connection.close)
            self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if not has_table(self._connection):
                raise DatabaseError(f"{display_path(place.rows)}: its table is missing")
            undo.pop_all()

    def append(self, group: Sequence[QueuedEntry]) -> list[Row]:
        """Write the rows that follow ``last``: all or none; on return they are safe on disk.

        If this raises and ``last`` has moved, the rows are written and only the head file's line failed.
        """
        if not self._headed:
            self._write_head()
        rows = chain_rows(self.last, group)
        try:
            self._commit(rows)
        except sqlite3.IntegrityError:
            place = display_path(self.place.rows)
            raise DatabaseError(f"{place}: another process writes to it: stop that process, and start again") from None
        except sqlite3.Error as error:
            raise explain_error(self.place.rows, error) from None
        self.last, self._headed = rows[-1].link, False
        self._write_head()
        return rows

    def _commit(self, rows: Sequence[Row]) -> None:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_INSERT, rows)
            (pages,), (page,) = run("PRAGMA page_count").fetchone(), run("PRAGMA page_size").fetchone()
            self.sync_head()
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # then the next BEGIN fails
                    run("ROLLBACK")
            raise
        self.size = pages * page

    def _write_head(self) -> None:
        line = f"{self.last.seq} {self.last.hash} {time.time():.3f}\n".encode()
        with self._head_lock:
            try:
                before = os.fstat(self._head).st_size
                if os.write(self._head, line) != len(line):
                    os.ftruncate(self._head, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise self._explain_head_error(error) from None
            self._headed, self._head_synced = True, False

    def sync_head(self) -> None:
        """Make the head file's last line safe on disk: a power failure could lose the lines of several commits."""
        with self._head_lock:
            if not self._head_synced:
                try:
                    os.fdatasync(self._head)
                except OSError as error:
                    raise self._explain_head_error(error) from None
                self._head_synced = True

    def _explain_head_error(self, error: OSError) -> DatabaseError:
        return DatabaseError(f"{display_path(self.place.head)}: {error.strerror}: check its file system")

    def reserve(self) -> None:
        """Reserve disk room for further rows; ``OSError`` if there isn't enough or it can't be reserved."""
        if self._reserve is None:
            self._reserve = Reserve(self.place.rows, self.place.head)
        self._reserve.allocate()

    def close(self) -> None:
        with contextlib.suppress(DatabaseError):  # at worst the line is missing, and the next kernel writes it
            self.sync_head()
        with self._head_lock:
            self._head_synced = True  # a thread that comes late has nothing to sync
            os.close(self._head)
        self._connection.close()
        if self._reserve is not None:
            self._reserve.close()


def _open_head(path: Path) -> int:
    """Open a head file for appending; a line left incomplete by a crash is removed."""
    try:
        with contextlib.ExitStack() as undo:
            fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            undo.callback(os.close, fd)
            os.fchmod(fd, 0o600)
            size = os.fstat(fd).st_size
            end = os.pread(fd, 200, max(0, size - 200))
            if end and not end.endswith(b"\n"):
                os.ftruncate(fd, size - (len(end) - (end.rfind(b"\n") + 1)))
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, directory)
            os.fsync(directory)  # so that the file's name survives a power failure
            undo.pop_all()
            os.close(directory)
            return fd
    except OSError as error:
        raise DatabaseError(describe_error(error, path)) from None


# -- Reading -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_for_reading(place: SegmentFiles) -> Iterator[sqlite3.Connection]:
    """A read-only connection to a segment, also while it is written to; leaves no files behind.

    ``FileNotFoundError`` and other ``OSError`` as from :func:`open`; ``sqlite3.Error`` if the file is no database.
    """
    quiet = has_no_writer(place)
    if not os.access(place.rows, os.R_OK):  # opening and closing it would drop the file locks of this process's writer
        os.stat(place.rows)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place.rows))
    # Without a write-ahead log there is no writer. A normal read-only open would create one in that directory.
    how = "mode=ro&immutable=1" if quiet else "mode=ro"
    try:
        connection = sqlite3.connect(
            f"{place.rows.absolute().as_uri()}?{how}", uri=True, timeout=5, isolation_level=None
        )
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            yield connection
        finally:
            connection.close()
    except sqlite3.Error:
        os.stat(place.rows)  # it may have been removed meanwhile
        raise


def has_no_writer(place: SegmentFiles) -> bool:
    """Whether the segment has no writer now, and none was killed while writing."""
    return not os.path.exists(f"{place.rows}-wal")


def has_table(connection: sqlite3.Connection) -> bool:
    """Whether the table exists: a kernel may have been killed before it created it."""
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchall())


def read_rows(connection: sqlite3.Connection, where: str = "", *values: object) -> Iterator[Row]:
    for each in connection.execute(f"{SELECT} {where}", values):
        row = Row._make(each)
        if not row.has_valid_types:
            raise sqlite3.DataError(f"entry {row.seq} has values of the wrong type, not written by the kernel")
        yield row


def read_last_row(place: SegmentFiles) -> Row | None:
    with open_for_reading(place) as connection:
        return next(read_rows(connection, "ORDER BY seq DESC LIMIT 1"), None)


def is_empty(place: SegmentFiles) -> bool:
    """Whether nothing was ever written to it; false if it can't be read."""
    if head_size(place):
        return False
    try:
        with open_for_reading(place) as connection:
            return not has_table(connection) or next(read_rows(connection, "LIMIT 1"), None) is None
    except FileNotFoundError:
        return True
    except (OSError, sqlite3.Error):
        return False


class HeadLine:
    """A line of a head file: its content, or ``link`` None if it is malformed; and its end in the file."""

    __slots__ = ("end", "link")

    def __init__(self, raw: bytes, end: int) -> None:
        found = _HEAD_LINE.fullmatch(raw)
        self.link = Link(int(found[1]), found[2].decode()) if found else None
        self.end = end


def read_head_lines(place: SegmentFiles) -> Iterator[HeadLine]:
    """All lines up to the file's end when that is reached; an incomplete last line is left out."""
    end = 0
    try:
        with open(place.head, "rb") as file:
            while raw := file.readline(200):
                end += len(raw)
                if not raw.endswith(b"\n") and len(raw) < 200:
                    return
                yield HeadLine(raw, end)
    except FileNotFoundError:
        return


def head_size(place: SegmentFiles) -> int:
    try:
        return os.stat(place.head).st_size
    except FileNotFoundError:
        return 0


def read_last_head_line(place: SegmentFiles) -> Link | None:
    """The content of the head file's last complete line."""
    try:
        with open(place.head, "rb") as file:
            file.seek(max(0, head_size(place) - 400))
            whole = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    except FileNotFoundError:
        return None
    return HeadLine(whole[-1], 0).link if whole else None
