"""Stops that outlast the kernel: the names of agents that STOP with ``keep`` has stopped, in the database."""

import contextlib
import sqlite3
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from agentos.database import Database, DatabaseError
from agentos_sdk.errors import Unavailable

TABLES: Final = ("CREATE TABLE kept_stops (name TEXT PRIMARY KEY, stopped_by TEXT NOT NULL) WITHOUT ROWID",)


class KeptStops:
    """Agents that stay stopped when a kernel starts, by name, with the caller that stopped them.

    Each change is on disk when its method returns; ``Unavailable`` if it can't be written: nothing has changed then.
    """

    def __init__(self, database: Database, stopped_by: dict[str, str]) -> None:
        self._database, self._stopped_by = database, stopped_by

    @classmethod
    async def load(cls, database: Database) -> "KeptStops":
        """Raises :class:`agentos.database.DatabaseError`."""
        return cls(database, dict(await database.write(_load)))

    def find(self, name: str) -> str | None:
        """The caller that stopped an agent for longer than a kernel runs, or None."""
        return self._stopped_by.get(name)

    async def add(self, names: Sequence[str], by: str) -> None:
        await self._write(partial(_add, names, by))
        self._stopped_by |= dict.fromkeys(names, by)

    async def remove(self, names: Sequence[str]) -> None:
        kept = [name for name in names if name in self._stopped_by]
        if kept:
            await self._write(partial(_remove, kept))
            for name in kept:
                self._stopped_by.pop(name, None)

    async def forget_others(self, declared: Collection[str]) -> None:
        """Forget agents that aren't declared any more; where that can't be written, they stay until the next time."""
        with contextlib.suppress(Unavailable):
            await self.remove([name for name in self._stopped_by if name not in declared])

    async def _write(self, work: "partial[None]") -> None:
        try:
            await self._database.write(work)
        except DatabaseError as error:
            raise Unavailable(f"what stays stopped can't be written: {error}") from None


def _load(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return list(connection.execute("SELECT name, stopped_by FROM kept_stops"))


def _add(names: Sequence[str], by: str, connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT OR REPLACE INTO kept_stops VALUES (?, ?)", [(name, by) for name in names])


def _remove(names: Sequence[str], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM kept_stops WHERE name = ?", [(name,) for name in names])
