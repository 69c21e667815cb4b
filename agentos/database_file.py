"""The file of an SQLite database: opened, checked and migrated before anything else is written.

Every owner has its own tables, and a number of the statements that were run for it: what is new is appended to these. A
file that is damaged, of another program or of a newer version is left as it is, with an error that says what to do.
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from agentos.private_files import check_file, describe_error, display_path, open_file

APPLICATION_ID = 0x41474E54  # "AGNT", in the file's header
BUSY_TIMEOUT = 5.0  # seconds to wait for other writers of the file: a person with a shell, a backup

WITNESS: Sequence[str] = ("CREATE TABLE witness (id TEXT NOT NULL, commits INTEGER NOT NULL)",)  # of open_database

Schemas: TypeAlias = Mapping[str, Sequence[str]]
"""For each owner, the statements that create its tables, in order; never changed, only appended to."""

_MOVE_AWAY = "move it away, with its -wal and -shm files, and start once with --accept-lost-state"
_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some room on its file system",
    sqlite3.SQLITE_IOERR: "check its file system: it is full or failing",
    sqlite3.SQLITE_READONLY: "let this user write to it, or choose another directory with --state-dir",
    sqlite3.SQLITE_CANTOPEN: "let this user write there, free an inode (`df -i`), or choose another with --state-dir",
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


def accept_any(identity: Identity | None) -> None:
    """Take any file."""


class DatabaseError(Exception):
    """The file can't be opened, read or written; the text names it and says what to do. It is left unchanged."""


def connect(
    path: Path, schemas: Schemas, *, durable: bool = False, check: CheckIdentity = accept_any
) -> sqlite3.Connection:
    """Open the only writing connection to the file at ``path``; the file is created, checked and migrated. Blocks.

    ``durable``: commits survive a power failure, too, but each waits for the disk. The file isn't checked for
    corruption from end to end, because the owner of such a file has its own check. ``check`` may refuse the file.
    """
    if not path.is_file() or not path.stat().st_size:
        check(None)
        check = accept_any  # it has decided
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


def identify(connection: sqlite3.Connection) -> Identity:
    """The identity, which a new file gets; what it has had is then safe on disk. Blocks."""
    if not (found := _read_identity(connection)) or not found.id:
        found = Identity(secrets.token_hex(8))
        connection.execute("INSERT INTO witness VALUES (?, ?)", (found.id, found.commits))
    connection.execute("PRAGMA wal_checkpoint(FULL)")
    return found


def find_remedy(error: BaseException) -> str | None:
    """The remedy if the error is caused by the file and not by the work."""
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return None if code is None else _REMEDIES.get(code & 0xFF)  # the higher bits only give details


def explain_error(path: Path, error: BaseException) -> DatabaseError:
    """The error for people: which file, what is wrong with it, and what to do."""
    fix = find_remedy(error)
    return DatabaseError(f"{display_path(path)}: {error}: {fix}" if fix else f"{display_path(path)}: {error}")
