"""Rows of state in the database: reading, deleting, expiry and what accounts are charged."""

import math
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from outcome import Error, Outcome, Value

from agentos_sdk.errors import Conflict

from .spaces import end_of_prefix, list_accounts

TABLES: Final = (
    """CREATE TABLE state (
        space TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, expires REAL, account TEXT NOT NULL,
        size INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, key)
    )""",
    "CREATE INDEX state_by_expiry ON state (expires) WHERE expires IS NOT NULL",
    """CREATE TABLE state_accounts (
        name TEXT PRIMARY KEY, version INTEGER NOT NULL, keys INTEGER NOT NULL, bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
)
SWEPT_AT_ONCE = 100  # expired keys in one transaction


class Found(Struct, frozen=True):
    """The value of a key, as JSON, and the space in which it was found."""

    space: str
    version: int
    expires: float | None
    value: bytes


class Swept(Struct, frozen=True):
    """The removed keys, each as space, key, version and account, and the earliest expiry of the remaining ones."""

    keys: Sequence[tuple[str, str, int, str]]
    next_expiry: float


def fetch_all(
    wanted: Sequence[tuple[Sequence[str], str]], connection: sqlite3.Connection
) -> Sequence[Outcome[Found | None]]:
    return [Value(_fetch(spaces, key, connection)) for spaces, key in wanted]


def _fetch(spaces: Sequence[str], key: str, connection: sqlite3.Connection) -> Found | None:
    now = time.time()
    for space in spaces:
        row = connection.execute(
            "SELECT version, expires, value FROM state WHERE space = ? AND key = ?", (space, key)
        ).fetchone()
        if row is not None and not is_expired(row[1], now):
            return Found(space, *row)
    return None


def delete_all(wanted: Sequence[tuple[str, str, int | None]], connection: sqlite3.Connection) -> Sequence[Outcome[int]]:
    outcomes: list[Outcome[int]] = []
    for space, key, if_version in wanted:
        try:
            outcomes.append(Value(_delete(space, key, if_version, connection)))
        except Conflict as error:  # nothing was changed
            outcomes.append(Error(error))
    return outcomes


def _delete(space: str, key: str, if_version: int | None, connection: sqlite3.Connection) -> int:
    """Delete a key; returns its version, 0 if it doesn't exist. An expired one is left to :func:`sweep`."""
    row = connection.execute(
        "SELECT version, expires, account, size FROM state WHERE space = ? AND key = ?", (space, key)
    ).fetchone()
    exists = row is not None and not is_expired(row[1], time.time())
    check_version(key, if_version, row[0] if exists else 0)
    if not exists:
        return 0
    _charge(connection, row[2], -1, -row[3])
    connection.execute("DELETE FROM state WHERE space = ? AND key = ?", (space, key))
    version: int = row[0]
    return version


def list_keys(space: str, prefixes: Sequence[str], after: str, limit: int, connection: sqlite3.Connection) -> list[str]:
    found: list[str] = []
    for prefix in prefixes:
        query = "SELECT key FROM state WHERE space = ? AND key >= ? AND key > ? AND (expires IS NULL OR expires > ?)"
        values: list[object] = [space, prefix, after, time.time()]
        if (end := end_of_prefix(prefix)) is not None:
            query, values = f"{query} AND key < ?", [*values, end]
        rows = connection.execute(f"{query} ORDER BY key LIMIT ?", [*values, limit - len(found)])
        found += [key for (key,) in rows]
        if len(found) == limit:
            break
    return found


def sweep(sessions: frozenset[str], connection: sqlite3.Connection) -> Swept:
    """Remove up to :data:`SWEPT_AT_ONCE` expired keys, and all sessions except ``sessions``."""
    removed = connection.execute(
        """DELETE FROM state WHERE rowid IN (SELECT rowid FROM state WHERE expires <= ? ORDER BY expires LIMIT ?)
            RETURNING space, key, version, account, size""",
        (time.time(), SWEPT_AT_ONCE),
    ).fetchall()
    for _, _, _, account, size in removed:
        _charge(connection, account, -1, -size)
    spaces = connection.execute("SELECT name FROM state_accounts WHERE name LIKE '%~%'").fetchall()
    for (space,) in spaces:
        if space not in sessions:
            _remove(connection, "space = ?", (space,))
            connection.execute("DELETE FROM state_accounts WHERE name = ?", (space,))
    (next_expiry,) = connection.execute("SELECT min(expires) FROM state").fetchone()
    return Swept([row[:4] for row in removed], math.inf if next_expiry is None else next_expiry)


def remove_former(connection: sqlite3.Connection) -> None:
    """Remove the keys of sessions and of unnamed guests (``guest#7``): this kernel gives these names to others.

    Global keys that such a guest stored stay, and are charged to no account.
    """
    _remove(connection, "space LIKE '%~%' OR space LIKE '%#%'", ())
    connection.execute("UPDATE state SET account = '' WHERE account LIKE '%#%'")
    connection.execute("DELETE FROM state_accounts WHERE name LIKE '%~%' OR name LIKE '%#%'")


def _remove(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> None:
    """Remove the keys for which ``condition``, in SQL, holds."""
    charged = connection.execute(
        f"SELECT account, count(*), sum(size) FROM state WHERE {condition} GROUP BY account",  # noqa: S608
        values,
    ).fetchall()
    for account, keys, size in charged:
        _charge(connection, account, -keys, -size)
    if charged:
        connection.execute(f"DELETE FROM state WHERE {condition}", values)  # noqa: S608


def remove_rows(rows: Iterable[tuple[str, str, str, int]], connection: sqlite3.Connection) -> None:
    """Remove keys, each given as its space, key, account and size."""
    for space, key, account, size in rows:
        _charge(connection, account, -1, -size)
        connection.execute("DELETE FROM state WHERE space = ? AND key = ?", (space, key))


def check_version(key: str, wanted: int | None, present: int) -> None:
    if wanted is not None and wanted != present:
        what = f"{key!r} has the version {present}" if present else f"{key!r} doesn't exist"
        raise Conflict(f"if_version: {what}{f', not {wanted}' if wanted else ''}", version=present)


def is_expired(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now


def _charge(connection: sqlite3.Connection, account: str, keys: int, size: int) -> None:
    """Add to what an account and those above it have."""
    connection.executemany(
        """INSERT INTO state_accounts VALUES (?, 0, ?, ?)
            ON CONFLICT (name) DO UPDATE SET keys = keys + excluded.keys, bytes = bytes + excluded.bytes""",
        [(name, keys, size) for name in list_accounts(account)],
    )
