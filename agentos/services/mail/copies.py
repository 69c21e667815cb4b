"""Copies of unread messages in the database, one for each snapshot of an agent.

What is acknowledged, or removed for good, goes from all of them in the same transaction: it doesn't come back.
"""

import sqlite3
import time
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace
from outcome import Outcome

from agentos_sdk.encoding import codec

from .mailbox import Message
from .rows import COLUMNS, as_message, remove_all

TABLES: Final = (
    """CREATE TABLE snapshot_mail (
        snapshot TEXT NOT NULL,
        id INTEGER NOT NULL, mailbox TEXT NOT NULL, from_id INTEGER NOT NULL, from_name TEXT NOT NULL,
        from_kind TEXT NOT NULL, family TEXT NOT NULL, sent_at REAL NOT NULL, attempt INTEGER NOT NULL,
        dead INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (snapshot, id)
    )""",
    "CREATE INDEX snapshot_mail_by_id ON snapshot_mail (id)",
)


def copy_all(snapshot: str, numbers: Sequence[int], connection: sqlite3.Connection) -> None:
    """Copy messages that wait."""
    connection.execute(
        f"""INSERT INTO snapshot_mail SELECT ?, {COLUMNS} FROM mail
            WHERE id IN (SELECT value FROM json_each(?))""",  # noqa: S608 - our own names
        (snapshot, codec.encode(numbers).decode()),
    )


def read_copy(snapshot: str, connection: sqlite3.Connection) -> list[Message]:
    """The messages of a copy, the oldest first: not handed out yet."""
    now, began = time.time(), time.monotonic()
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM snapshot_mail WHERE snapshot = ? ORDER BY id",  # noqa: S608
        (snapshot,),
    )
    return [replace(as_message(row, now, began), attempt=0) for row in rows]


def put_back(snapshot: str, numbers: Sequence[int], connection: sqlite3.Connection) -> set[int]:
    """Store messages of a copy again; returns the ids of those that it still has: others were acknowledged."""
    chosen = (snapshot, codec.encode(numbers).decode())
    those = "FROM snapshot_mail WHERE snapshot = ? AND id IN (SELECT value FROM json_each(?))"
    columns = COLUMNS.replace("attempt", "0").replace("dead", "0")
    connection.execute(f"INSERT OR IGNORE INTO mail SELECT {columns} {those}", chosen)
    return {number for (number,) in connection.execute(f"SELECT id {those}", chosen)}


def acknowledge_all(items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Remove messages for good: from all copies as well."""
    numbers = codec.encode([number for item in items for number in item]).decode()
    connection.execute("DELETE FROM snapshot_mail WHERE id IN (SELECT value FROM json_each(?))", (numbers,))
    return remove_all(items, connection)


def forget_others(snapshots: Sequence[str], connection: sqlite3.Connection) -> None:
    """Remove all copies but those of these snapshots."""
    connection.execute(
        "DELETE FROM snapshot_mail WHERE snapshot NOT IN (SELECT value FROM json_each(?))",
        (codec.encode(snapshots).decode(),),
    )
