"""Log on disk: takes lines of agents and of the kernel, writes them in a thread, removes the oldest files.

Adding a line costs microseconds and never waits. The waiting lines are written ten times a second, together. While the
disk is full or fails, they stay in memory up to ``MAX_WAITING``; then the oldest lines of the agent with the most are
dropped and counted, and the count is written where they are missing. Agents aren't affected.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import trio
from attrs import define, field, frozen
from msgspec.structs import replace

from agentos.finishing import run_and_finish
from agentos.private_files import display_path, hold_directory
from agentos.services.events import AgentOutput, AgentOver, Event
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.encoding.codec import Rule, Seconds, Size

from .files import KERNEL, FileKey, Line, LogDirectory, LogFile, Origin

log = logging.getLogger(__name__)

WRITE_DELAY = 0.1  # seconds until a line is written, so that many are written together
RETRY_DELAY = 1.0  # seconds between attempts to write after a failure
EXPIRY_INTERVAL = 60.0  # seconds between two looks for files that are too old
MAX_FILE_SECONDS = 86400.0  # a file is written for a day at most, so that lines go when they are old
MAX_WAITING = 8 << 20  # that wait to be written, as :func:`cost` counts
MAX_WRITE = 1 << 20  # … of one agent that are written at a time; more isn't waited for
LINE_COST = 256  # of a text, which may be many lines
DISK_BLOCK = 4096  # bytes of a file on disk are a multiple of it
RECORD_BYTES = 64  # of each line in the file, beside its text


MIN_FILE = 64 << 10  # bytes
FileSize = Annotated[Size, Rule(lambda size: size >= MIN_FILE, "a size of at least 64K")]
Age = Annotated[Seconds, Rule(lambda seconds: seconds >= 60, "a duration of at least 1m")]


@frozen
class LogSettings:
    """``[logs]``: sizes are bytes, ``max_age`` is seconds."""

    max_file_size: FileSize = Size(8 << 20)
    max_age: Age = Seconds(30 * 86400.0)
    max_total: Size = Size(1 << 30)


@define(eq=False)
class Source:
    """What one agent, or the kernel, has to write. ``writing`` are the lines that a thread is writing now."""

    name: str
    origin: Origin
    waiting: deque[Line] = field(factory=deque)
    size: int = 0  # of those that wait
    writing: Sequence[Line] = ()
    lost: int = 0  # lines that were dropped, as the log doesn't say yet
    told: int = 0  # … of these, how many the first of `writing` is about
    file: FileKey | None = None
    over: bool = False

    def take(self) -> None:
        """Move what waits to ``writing``, at most ``MAX_WRITE``."""
        lines, size, self.told = list[Line](), 0, self.lost
        if self.told:
            at = self.waiting[0].at if self.waiting else time.time()
            lines.append(Line(at, self.name, "kernel", f"{self.told} lines couldn't be written and are lost"))
        while self.waiting and size < MAX_WRITE:
            lines.append(self.waiting.popleft())
            size += cost(lines[-1])
        self.size -= size
        self.writing = lines

    def put_back(self) -> None:
        lines = self.writing[1:] if self.told else self.writing
        self.waiting.extendleft(reversed(lines))
        self.size += sum(map(cost, lines))
        self.writing = ()

    def drop(self, size: int) -> int:
        """Drop the oldest lines that wait, of this size together; returns the size that was dropped."""
        dropped = 0
        while self.waiting and dropped < size:
            line = self.waiting.popleft()
            dropped += cost(line)
            self.lost += count_lines(line)
        self.size -= dropped
        return dropped


def find_place(files: Sequence[LogFile], key: FileKey) -> int | None:
    """Where the file with that key is. The last ones are looked at first: they are those that are written to."""
    return next((place for place in range(len(files) - 1, -1, -1) if files[place].key == key), None)


def count_lines(line: Line) -> int:
    return 1 + line.text.count("\n")


def cost(line: Line) -> int:
    """What a text, of one or many lines, costs in memory until it is written."""
    return len(line.text) + LINE_COST + RECORD_BYTES * line.text.count("\n")


Identify = Callable[[int], tuple[bool, str]]
"""For an agent's id: whether it is declared, and the owner of its log's room."""


@asynccontextmanager
async def open_logs(directory: Path, settings: LogSettings) -> AsyncIterator["Logs"]:
    """Open the log in ``directory``, created if missing; raises ``OSError``.

    All lines that are taken until the block ends, cancelled or not, are written before it is left.
    """
    with hold_directory(directory) as held:
        files = LogDirectory(held)
        logs = Logs(files, settings, await trio.to_thread.run_sync(files.scan))
        async with run_and_finish(logs.serve, lambda failure: logs.close()):
            yield logs


class Logs:
    """The log of one kernel. ``run`` is the number of this run."""

    def __init__(self, files: LogDirectory, settings: LogSettings, found: Iterable[LogFile]) -> None:
        self.directory, self.settings = files, settings
        self.files: dict[str, list[LogFile]] = {}  # by name, in the order of their first writes
        self._costs: Counter[str] = Counter()  # by owner
        self.run = 1
        for file in found:
            self._note_file(file)
            self.run = max(self.run, file.run + 1)
        self.identify: Identify = lambda agent: (False, "")
        self.sources: dict[int, Source] = {}
        self.kernel = self.sources[0] = Source(KERNEL, Origin(0, False, KERNEL))
        self.followers: set[Callable[[Source, Line], None]] = set()
        self._waiting = 0  # characters
        self._wake = trio.Event()
        self._hurry = trio.Event()  # so much waits that it is written at once
        self._closed = trio.Event()
        self._failing = False
        self._limiter = Limiter(1)

    # -- Taking lines ----------------------------------------------------------------------------------------------

    def take_event(self, event: Event) -> None:
        """Take the line of an event, if it is one; a subscriber."""
        match event:
            case AgentOutput():
                number, name = event.agent_id, event.name
                source = self.sources.get(number)
                if source is None:
                    declared, owner = self.identify(number)
                    source = self.sources[number] = Source(name, Origin(number, declared, owner or name))
                self.take(source, Line(event.at, name, event.stream, event.text))
            case AgentOver(agent_id=number) if number in self.sources:
                self.sources[number].over = True
                self._forget_idle(self.sources[number])

    def take_kernel_text(self, text: str) -> None:
        """Take a message of the kernel; its further lines are indented, for agents choose the text of some errors."""
        text = text.encode(errors="backslashreplace").decode()
        for number, line in enumerate(text.splitlines()):
            self.take(self.kernel, Line(time.time(), KERNEL, "kernel", f"  | {line}" if number else line))

    def take(self, source: Source, line: Line) -> None:
        """Have a line written soon."""
        source.waiting.append(line)
        source.size += cost(line)
        self._waiting += cost(line)
        for follow in self.followers:
            follow(source, line)
        if self._waiting > MAX_WAITING:
            largest = max(self.sources.values(), key=lambda source: source.size)
            self._waiting -= largest.drop(max(MAX_WAITING // 16, self._waiting - MAX_WAITING))
        if not self._wake.is_set():
            self._wake.set()
        if self._waiting > MAX_WRITE:
            self._hurry.set()

    def fill(self) -> float:
        """How full the queue of waiting lines is, from 0 to 1; 0 while it can't be written at all."""
        return 0.0 if self._failing else self._waiting / MAX_WAITING

    def waiting_lines(self, source: Source) -> list[Line]:
        """The lines of a source that aren't in its file yet."""
        return [*source.writing, *source.waiting]

    def close(self) -> None:
        """Write what waits, then nothing more."""
        self._closed.set()
        self._wake.set()
        self._hurry.set()

    # -- Writing ---------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Write until the log is closed and all is written, or can't be; cancellation waits for that, too."""
        with trio.CancelScope(shield=True):
            expiry = trio.current_time()
            while not self._closed.is_set():
                if trio.current_time() >= expiry:
                    expiry = trio.current_time() + EXPIRY_INTERVAL
                    await self._remove(self._take_expired())
                with trio.move_on_at(expiry):
                    await self._wake.wait()
                if self._wake.is_set():
                    with trio.move_on_after(RETRY_DELAY if self._failing else WRITE_DELAY):
                        await (self._closed if self._failing else self._hurry).wait()
                    await self._write()
                    await self._remove(self._take_surplus())
            await self._write()
            while self._waiting and not self._failing:
                await self._write()
        if self._waiting:
            count = sum(count_lines(line) for source in self.sources.values() for line in source.waiting)
            log.error("the log on disk is closed; %d lines couldn't be written", count)

    async def _write(self) -> None:
        """Write what waits; what can't be written waits again."""
        self._wake, self._hurry = trio.Event(), trio.Event()
        busy = [source for source in self.sources.values() if source.waiting or source.lost]
        for source in busy:
            source.take()
        jobs: dict[FileKey, Source] = {}
        for source in busy:
            jobs[self._choose_file(source, jobs)] = source
        results = await run_in_thread(partial(self._append, jobs), limiter=self._limiter)
        error: OSError | None = None
        for (key, source), result in zip(jobs.items(), results, strict=True):
            if isinstance(result, LogFile):
                source.file, source.writing, source.lost = key, (), source.lost - source.told
                self._note_file(result)
                self._forget_idle(source)
            else:
                error = result
                source.put_back()
        self._waiting = sum(source.size for source in self.sources.values())
        self._report(error)
        if self._waiting:
            self._wake.set()
        if self._waiting > MAX_WRITE:
            self._hurry.set()

    def _append(self, jobs: Mapping[FileKey, Source]) -> list[LogFile | OSError]:
        """In the thread: append to each file."""
        results: list[LogFile | OSError] = []
        for key, source in jobs.items():
            try:
                results.append(self.directory.append(key, source.origin, source.writing, key != source.file))
            except OSError as error:
                results.append(error)
        return results

    def _report(self, error: OSError | None) -> None:
        if error is None and self._failing:
            log.warning("logs can be written again")
        elif error is not None and not self._failing:
            place = display_path(error.filename or self.directory.directory)
            log.error("%s: logs can't be written, and agents go on without: %s", place, error.strerror)
        self._failing = error is not None

    def _choose_file(self, source: Source, taken: Collection[FileKey]) -> FileKey:
        """The file that a source writes to now: a new one where the last one is large or old, or was removed.

        No two sources have the same, also if one has the name of another that has just ended: the header says whose
        the lines are.
        """
        own = self.files.get(source.name, [])
        place = find_place(own, source.file) if source.file is not None else None
        if (
            place is not None
            and own[place].size < self.settings.max_file_size
            and 0 <= time.time() - own[place].begun < MAX_FILE_SECONDS
        ):
            return own[place].key
        used = (key for key in chain((file.key for file in own), taken) if key[:2] == (source.name, self.run))
        part = max((key.part for key in used), default=0) + 1
        return FileKey(source.name, self.run, part)

    def _forget_idle(self, source: Source) -> None:
        if source.over and not source.waiting and not source.writing and not source.lost:
            del self.sources[source.origin.id]

    # -- Room ------------------------------------------------------------------------------------------------------

    def _note_file(self, file: LogFile) -> None:
        own = self.files.get(file.name)
        if own is None:
            self.files[file.name] = [file]
        elif (place := find_place(own, file.key)) is None:
            own.append(file)
        else:
            self._costs[own[place].owner] -= own[place].cost
            own[place] = replace(file, begun=own[place].begun)
        self._costs[file.owner] += file.cost

    def _drop_file(self, file: LogFile) -> None:
        own = self.files[file.name]
        own.remove(file)
        if not own:
            del self.files[file.name]
        self._costs[file.owner] -= file.cost
        if not self._costs[file.owner]:
            del self._costs[file.owner]

    def _take_expired(self) -> list[LogFile]:
        """Take the files that are too old out of the index."""
        oldest = time.time() - self.settings.max_age
        expired = [file for own in self.files.values() for file in own if file.ended < oldest]
        for file in expired:
            self._drop_file(file)
        return expired

    def _take_surplus(self) -> list[LogFile]:
        """While there is too much, take the oldest file of the owner that has the most out of the index."""
        surplus, oldest = list[LogFile](), dict[str, Iterator[LogFile]]()  # by owner: to find one takes long
        total = self._costs.total()
        while total > self.settings.max_total:
            owner = max(self._costs, key=self._costs.__getitem__)
            if owner not in oldest:
                oldest[owner] = iter(self._list_by_age(owner))
            surplus.append(next(oldest[owner]))
            self._drop_file(surplus[-1])
            total -= surplus[-1].cost
        return surplus

    def _list_by_age(self, owner: str) -> list[LogFile]:
        """The files of an owner, the oldest first."""
        own = (file for files in self.files.values() for file in files if file.owner == owner)
        return sorted(own, key=lambda file: file.ended)

    async def free(self, wanted: int, may_go: Callable[[LogFile], bool]) -> int:
        """Remove the oldest of these files until so many bytes are free on disk; returns how many are."""
        found = [file for own in self.files.values() for file in own if may_go(file)]
        freed, taken = 0, list[LogFile]()
        for file in await run_in_thread(partial(sorted, found, key=attrgetter("ended"))):
            if freed < wanted and file in self.files.get(file.name, ()):  # it may have been removed meanwhile
                taken.append(file)
                freed += -(-file.size // DISK_BLOCK) * DISK_BLOCK
                self._drop_file(file)
        await self._remove(taken)
        return freed

    async def _remove(self, files: Sequence[LogFile]) -> None:
        if files:
            await run_in_thread(partial(self._unlink, files), limiter=self._limiter)

    def _unlink(self, files: Sequence[LogFile]) -> None:
        for file in files:
            try:
                self.directory.remove(file.key)
            except OSError as error:
                log.warning("a log that is too old stays: %s: %s", file.key.filename, error.strerror)
