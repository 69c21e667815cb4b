"""Event files: the last events on disk, also those of earlier kernels. The methods of :class:`EventFiles` block.

Files are named ``N.jsonl``. After :data:`FILE_EVENTS` events a new file begins. Of the oldest two files the events that
the ring has kept become one file, so a flood of events removes those of others here no more than there; the others go
to files that the kernel doesn't read (:mod:`.past`). The first line of a file, and of each run of a kernel, names the
boot. A run that ended in order has a last line with the number of its last event. Each other line is an event.

Events are written in batches. Lost are the last 0.1 s of a killed kernel and, if the disk is full, the events that
leave the ring before there is room again.
"""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio
from attrs import define, field

from agentos.finishing import run_and_finish
from agentos.private_files import append_whole, display_path, hold_directory, open_file, replace_file
from agentos.threads import Limiter, run_in_thread

from .past import DIRECTORY, SPLIT, append_past, drop_oldest, list_numbers
from .record import Party, Record, Severity
from .ring import MAX_RECORDS, Boot, EventLog

log = logging.getLogger(__name__)

FILE_EVENTS: Final = 2500
FILE_BYTES: Final = 4 << 20
KEPT_FILES: Final = MAX_RECORDS // FILE_EVENTS + 1
BATCH: Final = 2500  # events that are written at a time
WRITE_DELAY: Final = 0.1  # seconds until an event is written, so that many are written together
RETRY_DELAY: Final = 1.0  # seconds between attempts after a failure
BOOT_STEP: Final = 1_000_000  # the numbers of a boot begin behind a multiple of it
UNWRITTEN: Final = 100_000  # numbers that a killed kernel may have given to events that it didn't write


class _Line(msgspec.Struct):
    """A line: the first of a file has ``boot`` and ``first``, an event ``seq``, the end of a run only ``last``."""

    boot: str = ""
    first: int = 0
    last: int = 0
    seq: int = 0
    type: str = ""
    source_agent_id: int = 0
    agent_ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    severity: Severity = "info"
    at: float = 0.0
    key_scope: str | None = None
    key: str | None = None
    share: tuple[Party, Party] = (0, 0)


class _Rest(msgspec.Struct):
    """The log's own fields of an event, which readers don't get; they end its line."""

    agent_ids: tuple[int, ...]
    names: tuple[str, ...]
    key_scope: str | None
    key: str | None
    share: tuple[Party, Party]


_encode = msgspec.json.Encoder().encode
_read_line = msgspec.json.Decoder(_Line).decode


def encode_line(record: Record) -> bytes:
    """An event as a line. Parties above an agent aren't kept: only the operator sees events of earlier boots."""
    key = record.key_scope, record.key
    return b"%s,%s\n" % (record.text, _encode(_Rest(record.agent_ids, record.names, *key, record.share))[1:])


def _make_record(line: _Line, raw: bytes) -> Record:
    concerned = (line.agent_ids, line.names, (), None)
    text, (party, source) = raw[: raw.rindex(SPLIT)], line.share
    return Record(
        *(line.seq, line.boot, line.type, line.source_agent_id, *concerned),
        *(line.severity, line.at, line.key_scope, line.key, (f"{line.boot} {party}", source), text),
    )


@define
class EventFiles:
    """The files in one directory, which the caller holds (:mod:`agentos.private_files`)."""

    directory: Path
    _numbers: list[int] = field(factory=list)  # of the files that exist, in order
    _first: int = 0  # the file that this boot appends to first
    _begun: bool = False  # the last file names this boot
    _events: int = 0  # in the last file
    _bytes: int = 0

    def load(self) -> tuple[list[Boot], list[Record]]:
        """Return the earlier boots and the events in the files. Lines that can't be read are skipped."""
        self._numbers = list_numbers(self.directory)
        self._first = self._numbers[-1] if self._numbers else 0
        boots, records = list[Boot](), list[Record]()
        for number in self._numbers:
            before = len(records)
            with open(open_file(self._path(number), os.O_RDONLY), "rb") as file:
                for raw in file:
                    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, ValueError):
                        self._take_line(_read_line(raw), raw, boots, records)
                self._events, self._bytes = len(records) - before, file.tell()
        return boots, records

    def _take_line(self, line: _Line, raw: bytes, boots: list[Boot], records: list[Record]) -> None:
        if line.seq:
            records.append(_make_record(line, raw))
        elif line.last and boots:
            boots[-1].last = line.last
        elif line.boot and (not boots or boots[-1].id != line.boot):
            boots.append(Boot(line.boot, line.first))

    def append(
        self, boot: Boot, records: Sequence[Record], last: int | None = None, kept: Sequence[Record] = ()
    ) -> None:
        """Append events, and at the end of a run the number of its last one. On ``OSError`` nothing is appended.

        ``kept`` are all events that are still to be found in files.
        """
        if not self._numbers or self._events >= FILE_EVENTS or self._bytes >= FILE_BYTES:
            while len(self._numbers) >= KEPT_FILES:
                self._merge_oldest({record.seq for record in kept})
            self._numbers.append(self._numbers[-1] + 1 if self._numbers else 1)
            self._begun, self._events, self._bytes = False, 0, 0
        lines = [] if self._begun else [b'\n{"boot":"%s","first":%d}\n' % (boot.id.encode(), boot.first)]
        lines += map(encode_line, records)
        if last is not None:
            lines.append(b'{"last":%d}\n' % last)
        data = b"".join(lines)
        self._write(data)
        self._begun = True
        self._events += len(records)
        self._bytes += len(data)

    def drop_former(self, wanted: int) -> int:
        """Remove files until so many bytes are free, the oldest first; returns how many are.

        First those of events that have left the ring, then those without events of this boot.
        """
        past = self.directory / DIRECTORY
        freed = drop_oldest(past, list_numbers(past), wanted) if past.is_dir() else 0
        former = [number for number in self._numbers if number < self._first]
        kept = self._numbers[len(former) :]
        freed += drop_oldest(self.directory, former, wanted - freed)
        self._numbers = former + kept
        return freed

    def _merge_oldest(self, kept: Collection[int]) -> None:
        """Make one file of the oldest two, of the events with these numbers; the others are past."""
        first, second = map(self._path, self._numbers[:2])
        lines, past, run, begun = list[bytes](), list[bytes](), b"", b""
        for path in (first, second):
            with contextlib.suppress(FileNotFoundError), open(open_file(path, os.O_RDONLY), "rb") as file:
                for raw in file:
                    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, ValueError):
                        line = _read_line(raw)
                        if line.boot and not line.seq:
                            run = raw  # is kept, once, if an event of the run is
                        elif line.seq in kept or (line.last and run == begun):
                            lines += [raw] if run == begun else [run, raw]
                            begun = run
                        elif line.seq:
                            past.append(raw)
        replace_file(second, b"".join(lines), sync=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(first)
        del self._numbers[0]
        if past:  # last: where there is no room, a later attempt doesn't add them again and again
            append_past(self.directory, past)

    def _write(self, data: bytes) -> None:
        fd = open_file(self._path(self._numbers[-1]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            append_whole(fd, data)
        finally:
            os.close(fd)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number}.jsonl"


@asynccontextmanager
async def open_event_log(directory: Path) -> AsyncIterator[EventLog]:
    """The log with the events of earlier kernels in ``directory``, created if missing; raises ``OSError``.

    Events that are published until the block ends, cancelled or not, are written before it is left.
    """
    with hold_directory(directory) as held:
        files = EventFiles(held)
        boots, records = await run_in_thread(files.load)
        events = EventLog(first=choose_first(boots, records), earlier=boots, records=records)
        writer = _Writer(files, events)
        events.free = writer.free
        async with run_and_finish(writer.serve, lambda failure: writer.close()):
            yield events


def choose_first(boots: Sequence[Boot], records: Sequence[Record]) -> int:
    """The first number of a new boot, higher than any that an earlier one may have given."""
    known = [*(each.first for each in boots), *(each.last or 0 for each in boots), *(each.seq for each in records)]
    return (max(known) + UNWRITTEN) // BOOT_STEP * BOOT_STEP + BOOT_STEP + 1 if known else 1


class _Writer:
    """Writes new events of the ring to the files."""

    def __init__(self, files: EventFiles, events: EventLog) -> None:
        self.files, self.events = files, events
        self._place = events.next  # from here on events aren't written
        self._closed = trio.Event()
        self._failing = False
        self._limiter = Limiter(1)

    def close(self) -> None:
        """Write the remaining events, then stop."""
        self._closed.set()
        self.events.grown.set()

    async def serve(self) -> None:
        """Write until the log is closed and all events are written, or writing fails; cancellation waits for that."""
        with trio.CancelScope(shield=True):
            while not self._closed.is_set():
                await self.events.grown.wait()
                with trio.move_on_after(RETRY_DELAY if self._failing else WRITE_DELAY):
                    await self._closed.wait()
                await self._write()
            while self._place < self.events.next and not self._failing:
                await self._write()
            await self._append([], self.events.next - 1)
        if self._failing:
            log.error("%d events couldn't be written, and are lost", self.events.next - self._place)

    async def free(self, wanted: int) -> int:
        """Remove old files, see :meth:`EventFiles.drop_former`; the ring keeps their events while the kernel runs."""
        return await run_in_thread(self.files.drop_former, wanted, limiter=self._limiter)

    async def _write(self) -> None:
        self.events.grown = trio.Event()
        end, records = self.events.next, self.events.list_from(self._place, BATCH)
        if await self._append(records):
            self._place = records[-1].seq + 1 if len(records) == BATCH else end
        if self._place < self.events.next:
            self.events.grown.set()

    async def _append(self, records: Sequence[Record], last: int | None = None) -> bool:
        try:
            kept = self.events.list_from(0, 2 * MAX_RECORDS)
            await run_in_thread(self.files.append, self.events.boots[-1], records, last, kept, limiter=self._limiter)
        except OSError as error:
            if not self._failing:
                place = display_path(error.filename or self.files.directory)
                log.error("%s: events can't be written, and the next kernel will lack them: %s", place, error.strerror)
            self._failing = True
            return False
        if self._failing:
            log.warning("events can be written again")
        self._failing = False
        return True
