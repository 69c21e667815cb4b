"""Numbers that are given once per state directory: no kernel gives one that an earlier kernel gave.

A kernel reserves a block of them in the database before it gives any. What is left of it when the kernel ends in order
goes to the next one; a kernel that is killed leaves a gap.
"""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from attrs import define
from outcome import Error, Outcome

from agentos.database import Database, DatabaseError

log = logging.getLogger(__name__)

TABLES: Final = ("CREATE TABLE ids (name TEXT PRIMARY KEY, next INTEGER NOT NULL)",)
BLOCK: Final = 1000  # numbers reserved at a time


@define(eq=False)
class Ids:
    """The numbers called ``name``, from 1 up; ``next()`` gives one. ``is_new``: no kernel had these before."""

    database: Database
    name: str
    is_new: bool
    _next: int
    _reserved: int  # those below are this kernel's
    _reserving: bool = False

    def __next__(self) -> int:
        number, self._next = self._next, self._next + 1
        if self._reserved - self._next < BLOCK // 2 and not self._reserving:
            self._reserve()
        return number

    def __iter__(self) -> "Ids":
        return self

    def _reserve(self) -> None:
        """Reserve another block while half of the last is left. If that fails it is tried with the next number."""
        end = self._next + BLOCK

        def note(result: Outcome[None]) -> None:
            self._reserving = False
            if isinstance(result, Error):
                log.error("no more %s are reserved, so a next kernel may give some again: %s", self.name, result.error)
            else:
                self._reserved = end

        self._reserving = True
        try:
            self.database.begin(partial(_write, self.name, end), note)
        except DatabaseError as error:
            note(Error(error))

    async def give_back(self) -> None:
        """Leave what was reserved and not given to the next kernel."""
        await self.database.write(partial(_write, self.name, self._next))


@asynccontextmanager
async def open_ids(database: Database, name: str, greatest: str = "SELECT 0", above: int = 0) -> AsyncIterator[Ids]:
    """Reserve the first block; raises :class:`agentos.database.DatabaseError`.

    ``greatest`` is SQL for the greatest number in the database: a burst may have given more than were reserved. Up to
    ``above`` a kernel may have given numbers that the database doesn't know of.
    """
    first, is_new = await database.write(partial(_begin, name, greatest, above))
    ids = Ids(database, name, is_new, first, first + BLOCK)
    try:
        yield ids
    finally:
        with trio.CancelScope(shield=True):
            try:
                await ids.give_back()
            except DatabaseError as error:
                log.warning("%d %s are left out from now on: %s", BLOCK, name, error)


def _begin(name: str, greatest: str, above: int, connection: sqlite3.Connection) -> tuple[int, bool]:
    row = connection.execute("SELECT next FROM ids WHERE name = ?", (name,)).fetchone()
    (used,) = connection.execute(greatest).fetchone()
    first = max(1 if row is None else int(row[0]), int(used or 0) + 1, above + 1)
    _write(name, first + BLOCK, connection)
    return first, row is None


def _write(name: str, following: int, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR REPLACE INTO ids VALUES (?, ?)", (name, following))
