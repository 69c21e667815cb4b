"""An audit log to look at: entries, what is in it, and hands that change it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from agentos.kernel.ports import Entry
from agentos.services.audit.chain import Row
from agentos.services.audit.log import Audit, open_audit
from agentos.services.audit.query import Query, iterate_all
from agentos.services.audit.verify import verify_log

WRITE = Entry(7, "worker", "agent", "WRITE", "/workspace/out.txt", "allow", "sandboxed: write", "intent")
READ = Entry(7, "worker", "agent", "READ", "/workspace/in.txt", "allow", "sandboxed: read", "outcome", "ok", 0.004)
DENIED = Entry(
    7, "worker", "agent", "READ", "/etc/shadow", "deny", "default: credentials", "outcome", "permission_denied"
)
OWN = ("KERNEL_START", "KERNEL_STOP")
SMALL = 32 << 10  # bytes of a segment: some sixty entries


def entry(about: str, **fields: Any) -> Entry:
    return replace(WRITE, about=about, **fields)


def found(directory: Path, query: Query | None = None) -> list[Row]:
    return list(iterate_all(directory, query or Query()))


def told(directory: Path) -> list[str]:
    """What each entry is about, without the kernel's own."""
    return [row.about for row in found(directory) if row.kind != "kernel"]


def sound(directory: Path) -> bool:
    report = verify_log(directory)
    assert not report.faults, report.faults
    return True


async def written(directory: Path, count: int, *, segment_size: int = 64 << 20, kept: int = 16) -> None:
    """A log with so many intents, one after the other, of a kernel that was stopped in order."""
    async with open_audit(directory, "1.0", segment_size=segment_size, kept=kept) as audit:
        for number in range(count):
            await audit.intend(entry(f"number {number}"))


async def settled(audit: Audit) -> None:
    """What was noted before is written: an intent takes all along that waits."""
    await audit.intend(entry("the last"))


def make(directory: Path, count: int, **options: int) -> None:
    async def main() -> None:
        await written(directory, count, **options)

    trio.run(main)


@contextmanager
def opened(directory: Path, number: int = 1) -> Iterator[sqlite3.Connection]:
    """Somebody's own hands on the rows of a segment."""
    connection = sqlite3.connect(directory / f"{number:06}.db", isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def change(directory: Path, sql: str, *values: object, number: int = 1) -> None:
    with opened(directory, number) as connection:
        assert connection.execute(sql, values).rowcount > 0
