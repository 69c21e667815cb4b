"""Queries of the audit log's files, also while a kernel writes to them. Blocking; for a thread."""

import itertools
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from .chain import Row
from .segments import SegmentFiles, has_table, list_segments, open_for_reading, read_last_row, read_rows

PAGE_ENTRIES = 1000  # entries


class Query(Struct, frozen=True):
    """Conditions for entries; ``None`` matches all. ``after`` is an entry number.

    ``since`` and ``until`` are seconds since the epoch; an entry of that time is in the first and not in the second.
    """

    agent: int | None = None
    name: str | None = None
    calls: Collection[str] | None = None
    decision: str | None = None
    since: float | None = None
    until: float | None = None
    after: int | None = None

    @property
    def where(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its values."""
        wanted: list[tuple[str, object]] = [
            ("agent = ?", self.agent),
            ("name = ?", self.name),
            ("decision = ?", self.decision),
            ("at >= ?", self.since),
            ("at < ?", self.until),
            ("seq > ?", self.after),
        ]
        terms = [(term, value) for term, value in wanted if value is not None]
        if self.calls is not None:
            terms.append((f"call IN ({', '.join('?' * len(self.calls))})", tuple(self.calls)))
        condition = " AND ".join(term for term, _ in terms)
        values = [each for _, value in terms for each in (value if isinstance(value, tuple) else (value,))]
        return (f"WHERE {condition}" if condition else ""), values


def read_newest(directory: Path, query: Query, limit: int) -> list[Row]:
    """The last ``limit`` entries that match, oldest first. Raises ``OSError``, ``sqlite3.Error``."""
    found: list[Row] = []
    for place in reversed(list_segments(directory)):
        found += _read_segment(place, query, "DESC", limit - len(found))
        if len(found) >= limit:
            break
    return found[::-1]


def read_oldest(directory: Path, query: Query, limit: int) -> list[Row]:
    """The first ``limit`` entries that match, oldest first. Raises ``OSError``, ``sqlite3.Error``."""
    found: list[Row] = []
    for place in list_segments(directory):
        if query.after is None or _has_entries_after(place, query.after):
            found += _read_segment(place, query, "ASC", limit - len(found))
        if len(found) >= limit:
            break
    return found


def iterate_all(directory: Path, query: Query) -> Iterator[Row]:
    """All entries that match, oldest first; in pages, because a long read lets the write-ahead log grow."""
    after = -1 if query.after is None else query.after
    while page := read_oldest(directory, replace(query, after=after), PAGE_ENTRIES):
        yield from page
        after = max(row.seq for row in page)  # even if the stored order was tampered with


def _has_entries_after(place: SegmentFiles, after: int) -> bool:
    try:
        last = read_last_row(place)
    except (FileNotFoundError, sqlite3.OperationalError):
        return False
    return last is not None and last.seq > after


def _read_segment(place: SegmentFiles, query: Query, order: str, limit: int) -> list[Row]:
    where, values = query.where
    try:
        with open_for_reading(place) as connection:
            if not has_table(connection):
                return []
            return list(itertools.islice(read_rows(connection, f"{where} ORDER BY seq {order}", *values), limit))
    except FileNotFoundError:  # the kernel has just removed it
        return []
