"""Kept messages in the database."""

import sqlite3
import time
from collections.abc import Sequence
from itertools import chain
from typing import Final

from outcome import Outcome, Value

from agentos_sdk.encoding import codec

from .mailbox import Message

TABLES: Final = (
    """CREATE TABLE mail (
        id INTEGER PRIMARY KEY, mailbox TEXT NOT NULL, from_id INTEGER NOT NULL, from_name TEXT NOT NULL,
        from_kind TEXT NOT NULL, family TEXT NOT NULL, sent_at REAL NOT NULL, attempt INTEGER NOT NULL,
        dead INTEGER NOT NULL, body BLOB NOT NULL
    )""",
)
COLUMNS: Final = "id, mailbox, from_id, from_name, from_kind, family, sent_at, attempt, dead, body"
GREATEST_ID: Final = "SELECT max(id) FROM mail"
MAX_BATCHED_BYTES: Final = 4 << 10  # of a message; a larger one has a statement of its own
AT_ONCE: Final = 100  # rows of one statement

Row = tuple[int, str, int, str, str, str, float, int, bool, bytes]


def as_row(mailbox: str, message: Message, dead: bool = False) -> Row:
    """The row of a message that is kept for the mailbox of this name."""
    return (
        message.id,
        mailbox,
        message.from_id,
        message.from_name,
        message.from_kind,
        message.family,
        message.sent_at,
        message.attempt,
        dead,
        message.body,
    )


def insert_all(items: Sequence[Sequence[Row]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Store the rows of several SENDs and BROADCASTs, with few statements."""
    rows = list(chain.from_iterable(items))
    small = [row for row in rows if len(row[-1]) <= MAX_BATCHED_BYTES]
    groups = [small[at : at + AT_ONCE] for at in range(0, len(small), AT_ONCE)]
    for together in (*groups, *([row] for row in rows if len(row[-1]) > MAX_BATCHED_BYTES)):
        marks = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(together))
        connection.execute(f"INSERT INTO mail VALUES {marks}", list(chain.from_iterable(together)))  # noqa: S608
    return [Value(None) for _ in items]


def remove_all(items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Remove messages that were taken, acknowledged or dropped."""
    return _change("DELETE FROM mail", items, connection)


def remove_for_good(items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Remove messages, also from the copies of snapshots: they don't come back."""
    _change("DELETE FROM snapshot_mail", items, connection)
    return remove_all(items, connection)


def count_attempts(items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Count that messages are handed out."""
    return _change("UPDATE mail SET attempt = attempt + 1", items, connection)


def bury_all(items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Make messages dead letters."""
    return _change("UPDATE mail SET dead = 1", items, connection)


def requeue_all(items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    """Make dead letters messages that were never handed out."""
    return _change("UPDATE mail SET dead = 0, attempt = 0", items, connection)


def _change(statement: str, items: Sequence[Sequence[int]], connection: sqlite3.Connection) -> Sequence[Outcome[None]]:
    wanted = codec.encode(list(chain.from_iterable(items))).decode()
    connection.execute(f"{statement} WHERE id IN (SELECT value FROM json_each(?))", (wanted,))  # noqa: S608
    return [Value(None) for _ in items]


def read_all(connection: sqlite3.Connection) -> Sequence[tuple[str, Message, bool]]:
    """Mailbox, message, and whether it is a dead letter, of all kept messages, the oldest first."""
    now, began = time.time(), time.monotonic()
    return [
        (row[1], as_message(row, now, began), bool(row[8]))
        for row in connection.execute(f"SELECT {COLUMNS} FROM mail ORDER BY id")  # noqa: S608
    ]


def as_message(row: Row, now: float, began: float) -> Message:
    """The message of a row; ``now`` is in seconds since the epoch, and ``began`` the same instant as monotonic time."""
    number, _, from_id, from_name, from_kind, family, sent_at, attempt, _, body = row
    return Message(
        id=number,
        from_id=from_id,
        from_name=from_name,
        from_kind=from_kind,  # type: ignore[arg-type]
        body=body,
        family=family,
        attempt=attempt,
        sent_at=sent_at,
        born=began - max(0.0, now - sent_at),
    )
