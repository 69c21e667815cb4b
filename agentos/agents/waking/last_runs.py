"""The last run of each schedule, in the database: what a kernel must know of the runs before it."""

import contextlib
import logging
import sqlite3
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from agentos.database import Database, DatabaseError

log = logging.getLogger("agentos.agents")

TABLES: Final = ("CREATE TABLE last_runs (name TEXT PRIMARY KEY, last REAL NOT NULL) WITHOUT ROWID",)


class LastRuns:
    """The time that each schedule has reached, by its agent's name, in seconds since the epoch.

    A change is on disk when its method returns. Where it can't be written, that is logged and the run begins all the
    same: the next kernel may catch it up once more.
    """

    def __init__(self, database: Database, last: dict[str, float]) -> None:
        self._database, self._last = database, last

    @classmethod
    async def load(cls, database: Database) -> "LastRuns":
        """Raises :class:`agentos.database.DatabaseError`."""
        return cls(database, dict(await database.write(_load)))

    def find(self, name: str) -> float | None:
        return self._last.get(name)

    async def note(self, last: Mapping[str, float]) -> None:
        self._last |= last
        try:
            await self._database.write(partial(_note, last))
        except DatabaseError as error:
            log.error("the times of the last runs can't be written: %s", error)

    async def forget_others(self, scheduled: Collection[str]) -> None:
        """Forget agents that have no schedule any more; where that can't be written, they stay until the next time."""
        gone = [name for name in self._last if name not in scheduled]
        if gone:
            with contextlib.suppress(DatabaseError):
                await self._database.write(partial(_forget, gone))
                for name in gone:
                    del self._last[name]


def _load(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    return list(connection.execute("SELECT name, last FROM last_runs"))


def _note(last: Mapping[str, float], connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT OR REPLACE INTO last_runs VALUES (?, ?)", [*last.items()])


def _forget(names: Collection[str], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM last_runs WHERE name = ?", [(name,) for name in names])
