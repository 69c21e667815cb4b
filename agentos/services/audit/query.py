"""Queries of the audit log's files, also while a kernel writes to them. Blocking; for a thread."""

import itertools
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path

import attrs
from attrs import frozen

from .chain import Row
from .segments import Place, is_made, last_row, places, reading, rows

PAGE = 1000  # entries


@frozen
class Query:
    """Conditions for entries; ``None`` matches all. ``after`` is an entry number, ``since`` seconds since the epoch."""

    agent: int | None = None
    name: str | None = None
    calls: Collection[str] | None = None
    decision: str | None = None
    since: float | None = None
    after: int | None = None

    @property
    def where(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its values."""
        wanted: list[tuple[str, object]] = [
            ("agent = ?", self.agent),
            ("name = ?", self.name),
            ("decision = ?", self.decision),
            ("at >= ?", self.since),
            ("seq > ?", self.after),
        ]
        terms = [(term, value) for term, value in wanted if value is not None]
        if self.calls is not None:
            terms.append((f"call IN ({', '.join('?' * len(self.calls))})", tuple(self.calls)))
        condition = " AND ".join(term for term, _ in terms)
        values = [each for _, value in terms for each in (value if isinstance(value, tuple) else (value,))]
        return (f"WHERE {condition}" if condition else ""), values


def newest(directory: Path, query: Query, limit: int) -> list[Row]:
    """The last ``limit`` entries that match, oldest first. Raises ``OSError``, ``sqlite3.Error``."""
    found: list[Row] = []
    for place in reversed(places(directory)):
        found += _some(place, query, "DESC", limit - len(found))
        if len(found) >= limit:
            break
    return found[::-1]


def oldest(directory: Path, query: Query, limit: int) -> list[Row]:
    """The first ``limit`` entries that match, oldest first. Raises ``OSError``, ``sqlite3.Error``."""
    found: list[Row] = []
    for place in places(directory):
        if query.after is None or _reaches(place, query.after):
            found += _some(place, query, "ASC", limit - len(found))
        if len(found) >= limit:
            break
    return found


def every(directory: Path, query: Query) -> Iterator[Row]:
    """All entries that match, oldest first; in pages, because a long read lets the write-ahead log grow."""
    after = -1 if query.after is None else query.after
    while page := oldest(directory, attrs.evolve(query, after=after), PAGE):
        yield from page
        after = max(row.seq for row in page)  # even if the stored order was tampered with


def _reaches(place: Place, after: int) -> bool:
    try:
        last = last_row(place)
    except (FileNotFoundError, sqlite3.OperationalError):
        return False
    return last is not None and last.seq > after


def _some(place: Place, query: Query, order: str, limit: int) -> list[Row]:
    where, values = query.where
    try:
        with reading(place) as connection:
            if not is_made(connection):
                return []
            return list(itertools.islice(rows(connection, f"{where} ORDER BY seq {order}", *values), limit))
    except FileNotFoundError:  # the kernel has just removed it
        return []
