"""Reading logs: the lines of several agents merged in time order, filtered, and followed."""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

import trio
from attrs import define, field, frozen

from agentos.threads import Limiter, run_in_thread

from .files import BLOCK_BYTES, KERNEL, MARK, MAX_BLOCK_BYTES, Line, LogDirectory, LogFile, Origin, Record, split_line
from .log import Logs, Source, cost, count_lines
from .pattern import Pattern

MAX_PAGE_LINES = 2000
MAX_PAGE_CHARS = 1 << 20  # LINE_COST added for each line
MAX_FOLLOWED = 256 << 10  # … that wait for a follower; the oldest are dropped
MERGED_BYTES = 8 << 20  # bytes of the blocks of all files that are read at once
PAGE_SECONDS = 0.25  # of a thread's time for a page, which may be empty then

REPEATED = ("ended: ", "given up: ", "unhealthy: ")  # of an agent's log: the kernel's log has these events as well

_at = attrgetter("at")


@frozen
class Selection:
    """Which lines. ``includes`` says it of a file or agent: its name, the run (0: the present one) and its origin.

    ``with_kernel``: the kernel's log is among them, so an event that is in an agent's log, too, is selected once.
    """

    includes: Callable[[str, int, Origin], bool]
    since: float = -float("inf")
    until: float = float("inf")
    stream: str | None = None
    pattern: Pattern | None = None
    run: int | None = None  # its number
    with_kernel: bool = False

    def selects(self, line: Line) -> bool:
        return (
            self.since <= line.at < self.until
            and (self.stream is None or line.stream == self.stream)
            and not (self.with_kernel and line.stream == "kernel" and is_repeated(line))
            and (self.pattern is None or self.pattern.matches(line.text))
        )

    def may_choose(self, raw: bytes) -> bool:
        return self.pattern is None or self.pattern.may_match(raw)

    def choose(self, name: str, records: Sequence[Record]) -> Sequence[Line]:
        """As :meth:`selects`, of many lines of a file at once."""
        chosen = [one for one in records if self.since <= one.at < self.until]
        if self.stream is not None:
            chosen = [one for one in chosen if one.stream == self.stream]
        if self.with_kernel and name != KERNEL:
            chosen = [one for one in chosen if one.stream != "kernel" or not one.text.startswith(REPEATED)]
        if self.pattern is not None:
            chosen = [chosen[place] for place in self.pattern.find([one.text for one in chosen])]
        return [Line(one.at, name, one.stream, one.text) for one in chosen]

    def selects_file(self, file: LogFile) -> bool:
        return (
            (self.run is None or self.run == file.run)
            and file.ended >= self.since - 1  # of a file that an earlier run wrote it is known by its modification time
            and file.begun < self.until + 1
            and self.includes(file.name, file.run, file.origin)
        )


def is_repeated(line: Line) -> bool:
    return line.name != KERNEL and line.text.startswith(REPEATED)


@frozen
class Page:
    """``done``: there are no more."""

    lines: Sequence[Line]
    done: bool


class Reading:
    """The selected lines of files, and of agents whose last ones aren't in their file yet, page by page."""

    def __init__(
        self,
        directory: LogDirectory,
        files: Iterable[LogFile],
        waiting: Mapping[str, Sequence[Line]],
        selection: Selection,
        backward: bool = False,
    ) -> None:
        by_name: dict[str, list[LogFile]] = {name: [] for name in waiting}
        for file in files:
            if selection.selects_file(file):
                by_name.setdefault(file.name, []).append(file)
        self._selection = selection
        self._block = max(BLOCK_BYTES, min(MAX_BLOCK_BYTES, MERGED_BYTES // max(1, len(by_name))))
        streams = [
            self._read_name(directory, sorted(own, key=attrgetter("key")), waiting.get(name, ()), backward)
            for name, own in by_name.items()
        ]
        self._lines = heapq.merge(*streams, key=_at, reverse=backward)

    def _read_name(
        self, directory: LogDirectory, files: Sequence[LogFile], waiting: Sequence[Line], backward: bool
    ) -> Iterator[Line]:
        single = [one for line in waiting for one in split_line(line) if self._selection.selects(one)]
        if backward:
            yield from reversed(single)
        for file in reversed(files) if backward else files:
            yield from directory.read(file, backward, self._selection, self._block)
        if not backward:
            yield from single

    def next_page(self, most: int = MAX_PAGE_LINES, chars: int = MAX_PAGE_CHARS) -> Page:
        """The next lines, as many as can be found in ``PAGE_SECONDS``. Blocks; for a thread."""
        found: list[Line] = []
        end = time.monotonic() + PAGE_SECONDS
        for line in self._lines:
            if line.stream != MARK:
                found.append(line)
                chars -= cost(line)
            if len(found) >= most or chars <= 0 or time.monotonic() > end:
                return Page(found, done=False)
        return Page(found, done=True)


@define(eq=False)
class Follower:
    """The selected lines that come from now on: bounded, the oldest are dropped and counted."""

    logs: Logs
    selection: Selection
    missed: int = 0
    _lines: deque[Line] = field(factory=deque)
    _size: int = 0
    _arrived: trio.Event = field(factory=trio.Event)

    def __enter__(self) -> "Follower":
        self.logs.followers.add(self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        self.logs.followers.discard(self._take)

    def _take(self, source: Source, line: Line) -> None:
        if self.selection.includes(source.name, self.logs.run, source.origin):
            self._lines.append(line)
            self._size += cost(line)
            while self._size > MAX_FOLLOWED:
                dropped = self._lines.popleft()
                self._size -= cost(dropped)
                self.missed += count_lines(dropped)
            self._arrived.set()

    async def wait(self) -> None:
        """Return when a line has come."""
        await self._arrived.wait()

    def take_all(self) -> tuple[list[Line], int]:
        """The lines that have come, unfiltered, and how many before them were dropped."""
        found, missed = list(self._lines), self.missed
        self._lines.clear()
        self._size = self.missed = 0
        self._arrived = trio.Event()
        return found, missed


class LogReader:
    """Reads one kernel's log for its callers, two at a time; a long reading makes room for others after each page."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self._limiter = Limiter(2)

    async def open(self, selection: Selection, backward: bool = False) -> Reading:
        """A reading of all that is there at this moment."""
        logs = self.logs
        sources = [
            source
            for source in logs.sources.values()
            if selection.run in (None, logs.run) and selection.includes(source.name, logs.run, source.origin)
        ]
        waiting: dict[str, list[Line]] = {}
        for source in sources:
            waiting.setdefault(source.name, []).extend(logs.waiting_lines(source))
        files = list(chain.from_iterable(logs.files.values()))
        # In a thread: there may be many files, and `includes` is asked about each.
        opening = partial(Reading, logs.directory, files, waiting, selection, backward)
        return await run_in_thread(opening, limiter=self._limiter)

    def count_lost(self, selection: Selection) -> int:
        """How many lines couldn't be written, as the log doesn't say yet."""
        sources = self.logs.sources.values()
        return sum(one.lost for one in sources if selection.includes(one.name, self.logs.run, one.origin))

    async def next_page(self, reading: Reading, most: int = MAX_PAGE_LINES, chars: int = MAX_PAGE_CHARS) -> Page:
        return await run_in_thread(partial(reading.next_page, most, chars), limiter=self._limiter)

    async def read_last(self, selection: Selection, count: int) -> tuple[list[Line], int]:
        """The last lines in time order, and how many are left out because together they are too long."""
        reading, found, chars, done = await self.open(selection, backward=True), list[Line](), MAX_PAGE_CHARS, False
        while not done and len(found) < count and chars > 0:
            page = await self.next_page(reading, count - len(found), chars)
            found += page.lines
            chars -= sum(map(cost, page.lines))
            done = page.done
        return found[::-1], count - len(found) if chars <= 0 else 0

    async def select(self, selection: Selection, lines: Sequence[Line]) -> list[Line]:
        """Those of these lines that are selected."""

        def select() -> list[Line]:
            return [one for line in lines for one in split_line(line) if selection.selects(one)]

        return select() if selection.pattern is None else await run_in_thread(select, limiter=self._limiter)
