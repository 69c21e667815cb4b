"""The output of `agentos run`: the kernel's log and the agents' output, line by line.

A terminal may block (Ctrl-S, a full pipe), and the kernel must not: a separate thread writes, from a bounded queue.
When the queue is full lines are dropped, and their number is printed.
"""

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Collection
from io import TextIOWrapper

from agentos.userland.cli.common import CONTINUATION
from agentos.userland.cli.console_limit import ConsoleLimit
from agentos.userland.cli.output_text import colour_of, printable_output, shows_colours

MAX_LINES = 10_000
WITHHELD_SECONDS = 1.0  # between two lines that count what isn't shown of agents
LEVELS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}


class Console(logging.Handler):
    """The log handler of a kernel in the foreground; a context manager. ``as_json``: each line is a JSON object.

    ``only``: the agents whose output is shown, None for all. It is limited: :mod:`~agentos.userland.cli.console_limit`.
    """

    def __init__(self, level: str, as_json: bool = False, only: Collection[str] | None = None) -> None:
        super().__init__(level.upper())
        self.as_json = as_json
        self.only = only
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        self._limit = ConsoleLimit()
        self._withholds = False  # the thread has been told that lines are withheld, and counts them when …
        self._counts_due = 0.0  # … time.monotonic() is this
        self._coloured = shows_colours()
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)

    def __enter__(self) -> "Console":
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may not support all characters
        self._thread.start()
        root = logging.getLogger()
        root.addHandler(self)
        logging._srcfile = None  # nothing shows which line of code logs, and finding it out takes as long as the rest
        root.setLevel(min(self.level, logging.INFO))  # the log on disk has messages that aren't printed here, too
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger().removeHandler(self)
        try:
            self._queue.put(None, timeout=1)
        except queue.Full:
            return  # the terminal isn't read
        self._thread.join(timeout=5)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        for number, line in enumerate(text.splitlines()):
            # Indented, for agents choose the text of some errors: a line of that must not read as another message.
            shown = CONTINUATION + line if number else line
            self._put("kernel", "kernel", shown, LEVELS.get(record.levelno, "1"), level=record.levelname.lower())

    def say(self, text: str) -> None:
        """Print a line of the kernel's, whatever the log level."""
        for line in text.splitlines():
            self._put("kernel", "kernel", line, "1", level="info")

    def end_echo(self) -> None:
        """End the line in which the terminal shows ``^C``."""
        if not self.as_json and sys.stdin.isatty() and sys.stdout.isatty():
            self._queue_line("\n")

    def show(self, name: str, stream: str, text: str) -> None:
        """Print lines of an agent's output; lines that the kernel added to it are in the log already."""
        if stream == "kernel" or self.level > logging.INFO or (self.only is not None and name not in self.only):
            return
        lines = text.split("\n")
        shown = self._limit.admit(name, lines)
        for line in shown:
            self._put(name, stream, line, str(colour_of(name)))
        if len(shown) < len(lines) and not self._withholds:
            self._counts_due, self._withholds = time.monotonic() + WITHHELD_SECONDS, True
            self._queue_line("")  # wakes the thread

    def _put(self, name: str, stream: str, text: str, colour: str, **more: str) -> None:
        self._queue_line(self._format(name, stream, text, colour, **more))

    def _format(self, name: str, stream: str, text: str, colour: str, **more: str | int) -> str:
        if self.as_json:
            return json.dumps({"at": time.time(), "name": name, "stream": stream, "text": text, **more}) + "\n"
        stamp = time.strftime("%H:%M:%S")
        tag = f"\x1b[{colour}m{name:>12}\x1b[0m" if self._coloured else f"{name:>12}"
        return f"{stamp} {tag} | {printable_output(text, self._coloured and stream != 'kernel')}\n"

    def _queue_line(self, line: str) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _next_line(self) -> str | None:
        """The next line to print, None at the end; the counts of withheld lines if they are due."""
        if not self._withholds:
            return self._queue.get()
        if (wait := self._counts_due - time.monotonic()) > 0:
            try:
                return self._queue.get(timeout=wait)
            except queue.Empty:
                pass
        self._withholds = False  # before they are taken: what is withheld from now on wakes this thread again
        counts = self._count_withheld()
        if counts:
            self._counts_due, self._withholds = time.monotonic() + WITHHELD_SECONDS, True
        return counts

    def _count_withheld(self) -> str:
        """A line for each agent of which lines weren't shown."""
        return "".join(
            self._format(name, "kernel", f"\u2026 {count:,} lines more: agentos logs {name}", "2", missed=count)
            for name, count in self._limit.take_withheld().items()
        )

    def _write(self) -> None:
        while (line := self._next_line()) is not None:
            try:
                if self._dropped:
                    text = f"{self._dropped} lines were not shown: this terminal was too slow"
                    line += (json.dumps({"missed": self._dropped}) if self.as_json else f"         ({text})") + "\n"
                    self._dropped = 0
                sys.stdout.write(line)
                if self._queue.empty():
                    sys.stdout.flush()
            except OSError:
                pass  # a closed terminal is no reason to stop
        try:
            sys.stdout.write(self._count_withheld())
            sys.stdout.flush()
        except OSError:  # drop the rest, or Python would try again at exit and report an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
