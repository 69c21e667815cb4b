"""Agent output: bounded, tagged lines that can be read afterwards or followed."""

import codecs
import select
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import trio
from attrs import define, field

from agentos.agents.commands.fair_reader import Pipe, Turns
from agentos.kernel.wire.poller import Poller
from agentos_sdk.values import Line

from .output_rate import OutputRate

MAX_LINES = 2000
MAX_BYTES = 512 << 10  # kept per agent
MAX_LINE_CHARS = 8 << 10  # characters; a longer line is cut into several
READ_SIZE = 64 << 10  # bytes per read: as many as a pipe holds
CONTINUATION = "  | "  # before the further lines of a message of the kernel


@define(eq=False)
class Output:
    """The last lines of an agent over all its lives.

    Lines that are read together stay together, as one text with line breaks: 200,000 lines can come per second.
    ``tap`` is called with each such text.
    """

    tap: Callable[[Line], None] | None = None
    _texts: list[Line] = field(factory=list)
    _count: int = 0  # of lines
    _size: int = 0
    _first: int = 0  # number of the oldest line kept; lines are numbered from 0
    _changed: trio.Event | None = None

    @property
    def end(self) -> int:
        """The number of the next line."""
        return self._first + self._count

    def add(self, stream: str, message: str) -> None:
        """Add a message of the kernel. Further lines are indented: agents choose the text of some errors."""
        self.add_lines(stream, message.replace("\n", f"\n{CONTINUATION}"))

    def add_lines(self, stream: str, text: str) -> None:
        """Add all lines of ``text``."""
        lines = Line(time.time(), stream, text)
        self._texts.append(lines)
        self._count += count_lines(text)
        self._size += len(text)
        self.trim(MAX_LINES, MAX_BYTES)
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if self.tap is not None:
            self.tap(lines)

    def trim(self, lines: int, size: int) -> None:
        """Keep at most the last ``lines`` lines and ``size`` characters."""
        while self._count > lines or self._size > size:
            text = self._texts[0].text
            rest = keep_last(text, lines - self._count + count_lines(text), size - self._size + len(text))
            dropped = count_lines(text) - (0 if rest is None else count_lines(rest))
            if rest is not None:
                self._texts[0] = Line(self._texts[0].at, self._texts[0].stream, rest)
            else:
                self._texts.pop(0)
            self._size -= len(text) - len(rest or "")
            self._count -= dropped
            self._first += dropped

    def _lines(self) -> Iterator[Line]:
        for lines in self._texts:
            for text in lines.text.split("\n"):
                yield Line(lines.at, lines.stream, text)

    def since(self, number: int) -> tuple[Sequence[Line], int]:
        """The lines from ``number`` on, and how many of the requested lines were dropped already."""
        missed = max(0, self._first - number)
        return list(islice(self._lines(), max(0, number - self._first), None)), missed

    def last(self, count: int, stream: str | None = None) -> Sequence[Line]:
        """The last ``count`` lines, of one stream or of all."""
        found = [line for line in self._lines() if stream is None or line.stream == stream]
        return found[-count:] if count > 0 else []

    async def wait_beyond(self, number: int) -> None:
        """Return when the line ``number`` has been written."""
        while self.end <= number:
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()


def count_lines(text: str) -> int:
    return 1 + text.count("\n")


def keep_last(text: str, lines: int, size: int) -> str | None:
    """The last ``lines`` lines of a text, or fewer if they are longer than ``size``; None if that is no line."""
    if lines <= 0:
        return None
    if lines < count_lines(text):
        text = "\n".join(text.rsplit("\n", lines)[1:])
    if len(text) <= size:
        return text
    cut = text.find("\n", max(0, len(text) - size - 1))
    return None if cut < 0 or size < 0 else text[cut + 1 :]


def has_long_line(text: str) -> bool:
    at = 0
    while len(text) - at > MAX_LINE_CHARS:
        at = text.rfind("\n", at, at + MAX_LINE_CHARS + 1) + 1
        if not at:
            return True
    return False


def clean_lines(text: str) -> str:
    """The text with long lines cut, and without the carriage returns that end lines."""
    if "\r" not in text and not has_long_line(text):
        return text
    return "\n".join(
        line[start : start + MAX_LINE_CHARS].rstrip("\r")
        for line in text.split("\n")
        for start in range(0, max(len(line), 1), MAX_LINE_CHARS)
    )


class Pump:
    """Reads one stream of a program from a pipe into an :class:`Output`, scheduled by ``turns``."""

    def __init__(self, fd: int, stream: str, output: Output, turns: Turns, rate: OutputRate) -> None:
        self._pipe = Pipe(fd, turns, output, READ_SIZE, self._add_data)
        self._rate = rate
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
        with self._rate.measure():
            lines = self._add_text(self._decoder.decode(data))
        return self._rate.cost(len(data), lines)

    def _add_text(self, text: str) -> int:
        """Add complete lines to the output; returns the number of newlines in ``text``."""
        whole, found, rest = (self._rest + text).rpartition("\n")
        if found:
            self._output.add_lines(self._stream, clean_lines(whole))
        long = max(0, len(rest) - 1) // MAX_LINE_CHARS * MAX_LINE_CHARS
        if long:
            self._output.add_lines(self._stream, clean_lines(rest[:long]))
        self._rest = rest[long:]
        return text.count("\n")
