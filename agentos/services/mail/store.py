"""Kept messages in the database, and what the families of their senders have there."""

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from attrs import define, field
from outcome import Error, Outcome

from agentos.database import Batch, Database, DatabaseError
from agentos_sdk.errors import QuotaExceeded, Unavailable

from . import rows
from .mailbox import Message

log = logging.getLogger(__name__)

Written: TypeAlias = Outcome[None]  # by name: in a function that SEND makes, Outcome[None] would be made each time
Done = Callable[[Written], object]
T = TypeVar("T")


@define(eq=False)
class MailStore:
    """The rows of kept messages. One family's may have ``most`` bytes; the operator and the kernel have none."""

    database: Database
    most: float
    sent: Counter[str] = field(factory=Counter)  # bytes by the sender's family

    def charge(self, family: str, size: int) -> None:
        """Count bytes of a family's, before they are written; raises ``QuotaExceeded``."""
        self.check(family, size)
        self.sent[family] += size

    def check(self, family: str, size: int) -> None:
        """Raise ``QuotaExceeded`` if a family may not have so many more bytes."""
        if not self.has_room(family, size):
            raise QuotaExceeded(
                f"mail: {family!r}, with what it spawned, may have {self.most} bytes of unread messages in mailboxes "
                f"that are kept (kernel.max_state_bytes), and this would be {self.sent[family] + size}: "
                "try again when some are read",
                name=family,
                what="bytes",
            )

    def has_room(self, family: str, size: int) -> bool:
        return not family or self.sent[family] + size <= self.most

    def discharge(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.sent[message.family] -= message.cost
            if not self.sent[message.family]:
                del self.sent[message.family]

    def begin(self, batch: Batch, item: Sequence[object], done: Done) -> Callable[[], bool]:
        """Begin to write; ``done`` gets nothing, or ``Unavailable``. The returned function drops what isn't begun.

        Raises ``Unavailable``.
        """

        def end(result: Written) -> None:
            if isinstance(result, Error) and isinstance(result.error, DatabaseError):
                result = Error(unavailable(result.error))
            done(result)

        try:
            return self.database.begin_in_batch(batch, item, end)
        except DatabaseError as error:
            raise unavailable(error) from None

    async def write(
        self,
        batch: Batch,
        item: Sequence[object],
        undo: Callable[[], object],
        announce: Callable[[Any], None] | None = None,
    ) -> None:
        """Write, and ``announce`` that in the order of the commits, or ``undo`` what was done for it.

        Raises ``Unavailable``.
        """
        try:
            await self.database.write_in_batch(batch, item, announce)
        except DatabaseError as error:
            undo()
            raise unavailable(error) from None
        except BaseException:
            undo()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work of the copies' tables. Raises ``Unavailable``."""
        try:
            return await self.database.write(work)
        except DatabaseError as error:
            raise unavailable(error) from None

    def write_later(self, batch: Batch, item: Sequence[object]) -> None:
        """Write without waiting. What isn't written is only seen by the next kernel, and logged."""
        if not item:
            return

        def note(result: Outcome[None]) -> None:
            if isinstance(result, Error):
                log.error("kept mail: a change wasn't written, and the next kernel won't know of it: %s", result.error)

        try:
            self.database.begin_in_batch(batch, item, note)
        except DatabaseError as error:
            note(Error(error))

    def insert_later(self, account: str, messages: Iterable[Message], *, dead: bool = False) -> None:
        """Keep messages that are in a mailbox already, without waiting; charged even beyond the quota."""
        written = list[rows.Row]()
        for message in messages:
            self.sent[message.family] += message.cost
            written.append(rows.as_row(account, message, dead))
        self.write_later(rows.insert_all, written)

    def forget(self, messages: Sequence[Message]) -> None:
        """Remove messages for good, without waiting."""
        self.discharge(messages)
        self.write_later(rows.remove_for_good, [message.id for message in messages])


def present(store: MailStore | None) -> MailStore:
    """The store of what is kept."""
    assert store is not None, "nothing is kept without a database"
    return store


def unavailable(error: BaseException) -> Unavailable:
    return Unavailable(f"kept mail can't be read or written: {error}")
