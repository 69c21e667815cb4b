"""Copies of unread messages in the database, one for each snapshot of an agent.

What is acknowledged, or removed for good, goes from all of them in the same transaction: it doesn't come back.
"""

import sqlite3
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from attrs import frozen
from msgspec.structs import replace

from agentos_sdk.encoding import codec

from .mailbox import Message
from .mailboxes import Mailboxes
from .rows import COLUMNS, as_message
from .store import present

TABLES: Final = (
    """CREATE TABLE snapshot_mail (
        snapshot TEXT NOT NULL,
        id INTEGER NOT NULL, mailbox TEXT NOT NULL, from_id INTEGER NOT NULL, from_name TEXT NOT NULL,
        from_kind TEXT NOT NULL, family TEXT NOT NULL, sent_at REAL NOT NULL, attempt INTEGER NOT NULL,
        dead INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (snapshot, id)
    )""",
    "CREATE INDEX snapshot_mail_by_id ON snapshot_mail (id)",
)


@frozen
class MailCopies:
    """Makes copies of what waits in a mailbox that is kept, and gives them back. All raise ``Unavailable``."""

    mail: Mailboxes

    async def copy(self, snapshot: str, account: str) -> None:
        """Copy the unread messages that are kept for an agent; leased ones aren't."""
        box = self.mail.find_kept(account)
        if box is not None and box.messages:
            numbers = [message.id for message in box.messages]
            await present(self.mail.store).run(partial(copy_all, snapshot, numbers))

    async def give_back(self, snapshot: str, account: str) -> int:
        """Have the messages of a copy wait again, unless they do or were acknowledged; returns how many have no room.

        Those are the latest, and stay in the copy: what an agent reads and gets back again would have no end otherwise.
        """
        box = self.mail.find_kept(account)
        if box is None:
            return 0
        store, chosen, back = present(self.mail.store), list[Message](), set[int]()
        copied = await store.run(partial(read_copy, snapshot))
        has = {one.id for one in (*box.messages, *box.dead)} | box.leases.keys()
        wanted = [one for one in copied if one.id not in has]
        for message in wanted:
            if not (box.fits(len(message.body)) and store.has_room(message.family, message.cost)):
                break
            store.charge(message.family, message.cost)
            box.reserve(len(message.body))
            chosen.append(message)
        try:
            back = await store.run(partial(put_back, snapshot, [one.id for one in chosen]))
        finally:
            for message in chosen:
                box.unreserve(len(message.body))
            store.discharge([message for message in chosen if message.id not in back])
            box.restore([message for message in chosen if message.id in back])
        return len(wanted) - len(chosen)

    async def forget_others(self, kept: Collection[str]) -> None:
        """Remove the copies of all snapshots but these."""
        if self.mail.store is not None:
            await self.mail.store.run(partial(forget_others, tuple(kept)))


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


def forget_others(snapshots: Sequence[str], connection: sqlite3.Connection) -> None:
    """Remove all copies but those of these snapshots."""
    connection.execute(
        "DELETE FROM snapshot_mail WHERE snapshot NOT IN (SELECT value FROM json_each(?))",
        (codec.encode(snapshots).decode(),),
    )
