"""Agent output: bounded, tagged lines that can be read afterwards or followed."""

import codecs
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import trio
from attrs import define, field

from agentos.kernel.poller import Poller
from agentos_sdk.values import Line

from .commands.fair_reader import Pipe, Turns
from .packed_lines import PackedLines

MAX_LINES = 2000
MAX_BYTES = 512 << 10  # kept per agent
MAX_LINE_CHARS = 8 << 10  # characters; a longer line is cut into several
READ_SIZE = 4 << 10  # bytes per read
BYTES_PER_SECOND = 2 << 20  # read of a stream that is the only one; a faster program waits, not the kernel
LINE_COST_BYTES = 256  # bytes added per line, since each line takes time, however short


@define(eq=False)
class Output:
    """The last lines of an agent over all its lives.

    ``tap`` is called with each new line, and once with all that were skipped, as a line that has line breaks.
    """

    tap: Callable[[Line], None] | None = None
    _lines: deque[Line] | list[Line] | PackedLines = field(factory=deque)
    _size: int = 0
    _first: int = 0  # number of the oldest line kept; lines are numbered from 0
    _changed: trio.Event | None = None

    @property
    def end(self) -> int:
        """The number of the next line."""
        return self._first + len(self._lines)

    def add(self, stream: str, text: str) -> None:
        line = Line(time.time(), stream, text)
        self._unpack().append(line)
        self._size += len(text)
        self.trim(MAX_LINES, MAX_BYTES)
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if self.tap is not None:
            self.tap(line)

    def skip(self, count: int, stream: str, text: str) -> None:
        """Count the ``count`` lines of ``text`` as received and dropped, and drop all lines before them."""
        if self.tap is not None:
            self.tap(Line(time.time(), stream, text))
        self._first = self.end + count
        self._lines = deque()
        self._size = 0

    def trim(self, lines: int, size: int) -> None:
        """Keep at most the last ``lines`` lines and ``size`` characters."""
        while len(self._lines) > lines or self._size > size:
            kept = self._unpack()
            dropped = kept.popleft() if isinstance(kept, deque) else kept.pop(0)
            self._size -= len(dropped.text)
            self._first += 1

    def pack(self, lines: int, size: int) -> None:
        """As :meth:`trim`, for an agent that has ended long ago: its lines will seldom be read."""
        self.trim(lines, size)
        self._lines = PackedLines.pack(self._lines)

    def _unpack(self) -> deque[Line] | list[Line]:
        if isinstance(self._lines, PackedLines):
            self._lines = list(self._lines)
        return self._lines

    def shrink(self) -> None:
        """Free what further lines would need; there will be none."""
        self._lines, self.tap = list(self._lines), None

    def since(self, number: int) -> tuple[Sequence[Line], int]:
        """The lines from ``number`` on, and how many of the requested lines were dropped already."""
        missed = max(0, self._first - number)
        return list(islice(self._lines, max(0, number - self._first), None)), missed

    def last(self, count: int, stream: str | None = None) -> Sequence[Line]:
        """The last ``count`` lines, of one stream or of all."""
        found = [line for line in self._lines if stream is None or line.stream == stream]
        return found[-count:] if count > 0 else []

    async def wait_beyond(self, number: int) -> None:
        """Return when the line ``number`` has been written."""
        while self.end <= number:
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()


class Pump:
    """Reads one stream of a program from a pipe into an :class:`Output`, scheduled by ``turns``."""

    def __init__(self, fd: int, stream: str, output: Output, turns: Turns) -> None:
        self._pipe = Pipe(fd, turns, output, READ_SIZE, self._add_data)
        self._stream = stream
        self._output = output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._fd = fd
        self._poller: Poller | None = None
        self._running = trio.CancelScope()
        self._ended: trio.Event | None = None  # of the task that reads, if there is one

    def start(self, poller: Poller, nursery: trio.Nursery) -> None:
        """Read from now on, until :meth:`end`; a program costs a task only once it writes more than its share."""
        self._poller = poller

        def read(events: int) -> None:
            pause = self._pipe.read() if events & select.EPOLLIN else None
            if pause != 0:
                poller.forget(self._fd)
            if pause:
                self._ended = trio.Event()
                nursery.start_soon(self._run_until_end, pause)

        poller.watch(self._fd, read, nursery)

    async def end(self) -> None:
        """Read what the pipe holds now, then close it. Not interrupted by cancellation."""
        if self._poller is not None:
            self._poller.forget(self._fd)
        if self._ended is not None:
            self._running.cancel()
            with trio.CancelScope(shield=True):
                await self._ended.wait()
        self.finish()

    async def _run_until_end(self, pause: float) -> None:
        try:
            with self._running:
                await trio.sleep(pause)
                await self.run()
        finally:
            assert self._ended is not None
            self._ended.set()

    async def run(self) -> None:
        """Read until the stream ends or this is cancelled."""
        await self._pipe.run()

    def finish(self) -> None:
        """Read what the pipe holds now, then close it."""
        self._pipe.finish()
        self._add_text(self._decoder.decode(b"", final=True))
        if self._rest:
            self._add_text("\n")

    def _add_data(self, data: bytes) -> float:
        lines = self._add_text(self._decoder.decode(data))
        return (len(data) + lines * LINE_COST_BYTES) / BYTES_PER_SECOND

    def _add_text(self, text: str) -> int:
        """Add complete lines to the output; returns the number of newlines in ``text``."""
        count = text.count("\n")
        if count > MAX_LINES:  # all but the last MAX_LINES would be dropped at once
            skipped, *lines, rest = text.rsplit("\n", MAX_LINES + 1)
            self._output.skip(count - MAX_LINES, self._stream, self._rest + skipped)
            self._rest = rest
        else:
            *lines, self._rest = (self._rest + text).split("\n")
        whole = max(0, len(self._rest) - 1) // MAX_LINE_CHARS * MAX_LINE_CHARS
        lines += (self._rest[start : start + MAX_LINE_CHARS] for start in range(0, whole, MAX_LINE_CHARS))
        self._rest = self._rest[whole:]
        for line in lines:
            for start in range(0, max(len(line), 1), MAX_LINE_CHARS):
                self._output.add(self._stream, line[start : start + MAX_LINE_CHARS].rstrip("\r"))
        return count
