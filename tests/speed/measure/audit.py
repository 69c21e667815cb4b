"""What writing it down costs: a note that nobody waits for, an intent until it is on the disk, and to verify them all.

In this process, in the directory of the measurement: on a disk these are that disk's figures. Beside them stands what
SQLite alone takes to have one such row on the disk, and what the disk takes for as many bytes.
"""

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import trio
from msgspec.structs import replace

from agentos.database_file import connect
from agentos.kernel.ports import Entry
from agentos.services.audit.chain import CHAIN_START, QueuedEntry, chain_rows
from agentos.services.audit.log import Audit, open_audit
from agentos.services.audit.pace import MAX_BURST
from agentos.services.audit.segments import SCHEMAS
from agentos.services.audit.verify import verify_log
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Figure, Result, Row

WRITE = Entry(7, "worker", "agent", "WRITE", "/workspace/notes/today.md", "allow", "level sandboxed: write", "intent")
READ = replace(WRITE, call="READ", phase="outcome", outcome="ok", duration=0.0012)
PAGE_BYTES = 4096 + 24  # bytes of a commit with one row: a page and what SQLite writes before it
AT_ONCE = (1, 10, 100)  # unrelated callers who each announce one act after the other
ROWS = (
    Row("audit: to note an outcome, p50", " µs", most=10),
    Row("audit: to announce an act, p50, one caller", " ms", most=0.5, floor="SQLite"),
    Row("audit: to announce an act, p50, 10 unrelated callers", " ms"),
    Row("audit: to announce an act, p50, 100 unrelated callers", " ms"),
    Row("audit: to verify a log", " entries/s", more=True),
)


def audit(place: Place) -> list[Result]:
    directory = Path(mkdtemp(dir=place.directory))
    return trio.run(_measured, directory, 300 if place.quick else MAX_BURST)


async def _measured(directory: Path, count: int) -> list[Result]:
    async with open_audit(directory / "audit", "0") as log:
        notes = _noted(log, count)
        alone = await trio.to_thread.run_sync(_alone, directory / "alone.db", count)
        synced = await trio.to_thread.run_sync(_synced, directory / "plain", count)
        intents = [await _intended(log, callers, count) for callers in AT_ONCE]
    begun = time.perf_counter()
    report = await trio.to_thread.run_sync(verify_log, directory / "audit")
    took = time.perf_counter() - begun
    if not report.sound:
        raise MeasurementError(f"the log that was measured isn't sound: {report.faults[0]}")
    return [
        Result.of(ROWS[0], notes, note=_p99(notes)),
        Result(
            ROWS[1],
            Figure.of(intents[0]),
            Figure.of(alone),
            note=f"{_p99(intents[0])}, fdatasync {median(synced):.2f}",
        ),
        *(Result.of(row, ms, note=_p99(ms)) for row, ms in zip(ROWS[2:4], intents[1:], strict=True)),
        Result.of(ROWS[4], [report.entries / took]),
    ]


def _noted(log: Audit, count: int) -> list[float]:
    """Microseconds; half of them are more than their caller may have written, and are counted."""
    taken = []
    for number in range(count):
        entry = replace(READ, agent=number % 10)
        begun = time.perf_counter_ns()
        log.note(entry)
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return taken


async def _intended(log: Audit, callers: int, count: int) -> list[float]:
    """Milliseconds of each of ``count`` intents.

    Each caller is a family of its own, with fewer intents than its burst: the pacing of a family isn't measured.
    """
    taken: list[float] = []

    async def act(entry: Entry) -> None:
        for _ in range(count // callers):
            begun = time.perf_counter()
            await log.intend(entry)
            taken.append((time.perf_counter() - begun) * 1000)

    async with trio.open_nursery() as nursery:
        for number in range(callers):
            nursery.start_soon(act, replace(WRITE, agent=callers * 1000 + number))
    return taken


def _alone(path: Path, count: int) -> list[float]:
    """Milliseconds of a commit with one row, by nobody but SQLite."""
    connection = connect(path, SCHEMAS, durable=True)
    taken, last = [], CHAIN_START
    try:
        for _ in range(count):
            [row] = chain_rows(last, [QueuedEntry(WRITE, 1.0)])
            begun = time.perf_counter()
            _insert(connection, row)
            taken.append((time.perf_counter() - begun) * 1000)
            last = row.link
    finally:
        connection.close()
    return taken


def _synced(path: Path, count: int) -> list[float]:
    """Milliseconds to write a page and sync it, in a file that has its length already."""
    taken = []
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(fd, bytes(PAGE_BYTES * count))
        os.fsync(fd)
        for number in range(count):
            begun = time.perf_counter()
            os.pwrite(fd, b"x" * PAGE_BYTES, PAGE_BYTES * number)
            os.fdatasync(fd)
            taken.append((time.perf_counter() - begun) * 1000)
    finally:
        os.close(fd)
    return taken


def _insert(connection: sqlite3.Connection, row: Sequence[object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("COMMIT")


def _p99(taken: Sequence[float]) -> str:
    return f"p99 {sorted(taken)[len(taken) * 99 // 100]:.2f}"
