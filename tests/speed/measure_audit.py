"""What writing it down costs: a note that nobody waits for, an intent until it is on the disk, and to verify them all.

In this process, in the directory of the measurement: on a disk these are that disk's figures. Beside them stands what
SQLite alone takes to have one such row on the disk.
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import attrs
import trio

from agentos.database import connect
from agentos.kernel.ports import Entry
from agentos.services.audit.chain import CHAIN_START, QueuedEntry, chain_rows
from agentos.services.audit.log import Audit, open_audit
from agentos.services.audit.segments import SCHEMAS
from agentos.services.audit.verify import verify_log
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Row

WRITE = Entry(7, "worker", "agent", "WRITE", "/workspace/notes/today.md", "allow", "level sandboxed: write", "intent")
READ = attrs.evolve(WRITE, call="READ", phase="outcome", outcome="ok", duration=0.0012)
AT_ONCE = (1, 10, 100)  # callers who each announce one act after the other
MOST_US = 10.0  # of a note, at the median


def audit(place: Place) -> list[Row]:
    directory = Path(mkdtemp(dir=place.directory))
    return trio.run(_measured, directory, 300 if place.quick else 2000)


async def _measured(directory: Path, count: int) -> list[Row]:
    async with open_audit(directory / "audit", "0") as log:
        notes = _noted(log, count)
        alone = await trio.to_thread.run_sync(_alone, directory / "alone.db", count)
        intents = {callers: await _intended(log, callers, max(20, count // callers)) for callers in AT_ONCE}
    begun = time.perf_counter()
    report = await trio.to_thread.run_sync(verify_log, directory / "audit")
    took = time.perf_counter() - begun
    if not report.sound:
        raise MeasurementError(f"the log that was measured isn't sound: {report.faults[0]}")
    return [
        _note(notes),
        *(_intent(callers, *intents[callers], alone) for callers in AT_ONCE),
        _verified(report.entries, took),
    ]


def _noted(log: Audit, count: int) -> list[float]:
    """Microseconds; half of them are more than their caller may have written, and are counted."""
    taken = []
    for number in range(count):
        entry = attrs.evolve(READ, agent=number % 10)
        begun = time.perf_counter_ns()
        log.note(entry)
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return taken


async def _intended(log: Audit, callers: int, each: int) -> tuple[list[float], float]:
    """Milliseconds, and how many in a second."""
    taken: list[float] = []

    async def act() -> None:
        for _ in range(each):
            begun = time.perf_counter()
            await log.intend(WRITE)
            taken.append((time.perf_counter() - begun) * 1000)

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(act)
    return taken, callers * each / (time.perf_counter() - begun)


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


def _insert(connection: sqlite3.Connection, row: Sequence[object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("COMMIT")


def _note(taken: Sequence[float]) -> Row:
    p50, p99 = median(taken), sorted(taken)[len(taken) * 99 // 100]
    return Row(
        "audit: an outcome that nobody waits for",
        f"{p50:.1f} µs (p99 {p99:.1f})",
        target=f"<= {MOST_US:g} µs",
        met=p50 <= MOST_US,
        numbers={"p50_us": p50, "p99_us": p99},
    )


def _intent(callers: int, taken: Sequence[float], rate: float, alone: Sequence[float]) -> Row:
    p50, p99 = median(taken), sorted(taken)[len(taken) * 99 // 100]
    who = "1 caller" if callers == 1 else f"{callers} callers at once"
    return Row(
        f"  an intent, until it is on the disk: {who}",
        f"{p50:.2f} ms (p99 {p99:.2f}), {rate:,.0f}/s",
        f"SQLite: {median(alone):.2f} ms" if callers == 1 else "-",
        f"{p50 / median(alone):.2f}" if callers == 1 else "-",
        numbers={"p50_ms": p50, "p99_ms": p99, "per_s": rate, "sqlite_ms": median(alone)},
    )


def _verified(entries: int, took: float) -> Row:
    return Row("  to verify a log", f"{entries / took:,.0f} entries/s", numbers={"per_s": entries / took})
