"""What each agent has used on each day: tokens, calls and cost of the model, CPU time and peak memory.

Amounts are collected in memory and written together, every :data:`WRITE_INTERVAL` seconds and when the kernel ends, so
a kernel that is killed loses at most what was used since. Days are those of UTC, as the windows of budgets are.
"""

import logging
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from attrs import define, field
from msgspec import Struct, structs

from agentos.database import Database, DatabaseError
from agentos_sdk.values import MAX_USAGE_ROWS, Usage

log = logging.getLogger(__name__)

TABLES: Final = (
    """CREATE TABLE usage (
        name TEXT, day TEXT, tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cost INTEGER, cpu_seconds REAL,
        peak INTEGER, PRIMARY KEY (day, name)
    ) WITHOUT ROWID""",
    "ALTER TABLE usage ADD COLUMN cache_read INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE usage ADD COLUMN cache_creation INTEGER NOT NULL DEFAULT 0",
    """CREATE TABLE model_usage (
        name TEXT, day TEXT, model TEXT, tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cost INTEGER,
        cache_read INTEGER NOT NULL, cache_creation INTEGER NOT NULL, PRIMARY KEY (day, name, model)
    ) WITHOUT ROWID""",
)
WRITE_INTERVAL = 1.0  # seconds
KEPT_DAYS = 400
MAX_UNWRITTEN = 10_000  # rows in memory while the database can't be written; then the oldest are dropped
OF_LIVES: Final = ("cpu_seconds", "peak")  # that no model has
SUMS: Final = {"cost": "CASE WHEN count(cost) = count(*) THEN sum(cost) END", "peak": "max(peak)"}  # of several days


class Row(Struct):
    """The usage of one account on one day, with the table's columns in their order; ``day`` is ``2026-11-22``.

    With a ``model``, of that model alone, and without CPU time and peak.

    ``cache_read`` and ``cache_creation`` are parts of ``tokens``, see :class:`agentos_sdk.values.Usage`.
    ``cost`` is in billionths, None if the model of any call has no price; ``peak`` is the largest of a life, in bytes.
    ``cpu_seconds`` and ``peak`` are None if nothing has counted them.
    """

    name: str
    day: str
    tokens: int = 0
    calls: int = 0
    cost: int | None = 0
    cpu_seconds: float | None = None
    peak: int | None = None
    cache_read: int = 0
    cache_creation: int = 0
    model: str | None = None

    def add(self, other: "Row") -> None:
        """Add another row of the same account and day."""
        self.tokens += other.tokens
        self.cache_read += other.cache_read
        self.cache_creation += other.cache_creation
        self.calls += other.calls
        self.cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        if other.cpu_seconds is not None:
            self.cpu_seconds = (self.cpu_seconds or 0.0) + other.cpu_seconds
        if other.peak is not None:
            self.peak = max(self.peak or 0, other.peak)


@define(eq=False)
class UsageLog:
    """The usage of all accounts by day, in ``database``."""

    database: Database
    _unwritten: dict[tuple[str, str, str | None], Row] = field(factory=dict)  # by name, day and model, oldest first
    _failed: bool = False  # at the last attempt to write

    def add_model_use(self, name: str, model: str, calls: int, used: Usage, cost: int | None) -> None:
        """Add what a question has used; ``cost`` in billionths, None if its model has no price."""
        if calls or used.total:
            row = Row(name.partition("#")[0], day_of(time.time()), used.total, calls, cost)
            row.cache_read, row.cache_creation = used.cache_read, used.cache_creation
            self._add(row)
            self._add(structs.replace(row, model=model))

    def add_life_use(self, name: str, cpu_seconds: float | None, peak: int | None) -> None:
        """Add CPU time, and the peak of the same life so far."""
        if cpu_seconds or peak is not None:
            self._add(Row(name, day_of(time.time()), cpu_seconds=cpu_seconds, peak=peak))

    def _add(self, row: Row) -> None:
        key = row.name, row.day, row.model
        if key in self._unwritten:
            self._unwritten[key].add(row)
            return
        self._unwritten[key] = row
        if len(self._unwritten) > MAX_UNWRITTEN:
            del self._unwritten[next(iter(self._unwritten))]

    async def write(self) -> None:
        """Write what has been collected; if that fails it is kept, and the first failure is logged."""
        rows, self._unwritten = self._unwritten, {}
        if not rows:
            return
        written = False
        try:
            await self.database.write(partial(_save, list(rows.values()), day_of(time.time() - KEPT_DAYS * 86400)))
            written = True
        except (DatabaseError, sqlite3.Error) as error:
            if not self._failed:
                log.error("the usage of agents is not written: %s", error)
        finally:
            self._failed = not written
            if not written:
                later, self._unwritten = self._unwritten, rows
                for row in later.values():
                    self._add(row)

    def write_later(self) -> None:
        """Queue what has been collected, before the database is closed."""
        rows = list(self._unwritten.values())
        self._unwritten.clear()
        try:
            self.database.submit(partial(_save, rows, day_of(0)), "the usage of agents")
        except DatabaseError as error:
            log.error("the usage of agents is not written: %s", error)

    async def read(self, name: str | None, since: str, *, by_model: bool = False, total: bool = False) -> Sequence[Row]:
        """The rows of one account or of all, from a day on, by day and name; raises ``DatabaseError``.

        ``by_model``: one for each model, counted since the first release that does. ``total``: one for all days, with
        the last of them, the largest cost first.
        """
        await self.write()
        return await self.database.write(partial(_load, name, since, by_model, total))


def day_of(moment: float) -> str:
    """The day in UTC of seconds since the epoch."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _save(rows: Sequence[Row], oldest: str, connection: sqlite3.Connection) -> None:
    connection.executemany(
        """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, name) DO UPDATE SET
            tokens = tokens + excluded.tokens, calls = calls + excluded.calls, cost = cost + excluded.cost,
            cpu_seconds = coalesce(cpu_seconds + excluded.cpu_seconds, cpu_seconds, excluded.cpu_seconds),
            peak = coalesce(max(peak, excluded.peak), peak, excluded.peak),
            cache_read = cache_read + excluded.cache_read, cache_creation = cache_creation + excluded.cache_creation""",
        [structs.astuple(row)[:9] for row in rows if row.model is None],
    )
    connection.executemany(
        """INSERT INTO model_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, name, model) DO UPDATE SET
            tokens = tokens + excluded.tokens, calls = calls + excluded.calls, cost = cost + excluded.cost,
            cache_read = cache_read + excluded.cache_read, cache_creation = cache_creation + excluded.cache_creation""",
        [
            (row.name, row.day, row.model, row.tokens, row.calls, row.cost, row.cache_read, row.cache_creation)
            for row in rows
            if row.model is not None
        ],
    )
    connection.execute("DELETE FROM usage WHERE day < ?", (oldest,))
    connection.execute("DELETE FROM model_usage WHERE day < ?", (oldest,))


def _load(name: str | None, since: str, by_model: bool, total: bool, connection: sqlite3.Connection) -> Sequence[Row]:
    """The newest rows, the oldest first; or with ``total`` the largest sums, these first."""
    table, keys, of_lives = ("model_usage", ("name", "model"), ()) if by_model else ("usage", ("name",), OF_LIVES)
    amounts = ("tokens", "calls", "cost", *of_lives, "cache_read", "cache_creation")
    where, arguments = ("day >= ? AND name = ?", [since, name]) if name is not None else ("day >= ?", [since])
    if total:
        values = ("max(day)", *(SUMS.get(one, f"sum({one})") for one in amounts))
        order = f"GROUP BY {', '.join(keys)} ORDER BY sum(cost) DESC, sum(tokens) DESC"
    else:
        values = ("day", *amounts)
        order = f"ORDER BY day DESC, {', '.join(f'{key} DESC' for key in keys)}"
    query = f"SELECT {', '.join((*keys, *values))} FROM {table} WHERE {where} {order} LIMIT {MAX_USAGE_ROWS}"  # noqa: S608
    found = connection.execute(query, arguments).fetchall()
    rows = [Row(**dict(zip((*keys, "day", *amounts), one, strict=True))) for one in found]
    return rows if total else rows[::-1]
