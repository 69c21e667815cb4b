"""The output of `agentos run`: the kernel's log and the agents' output, line by line.

A terminal may block (Ctrl-S, a full pipe), and the kernel must not: a separate thread writes, from a bounded queue.
When the queue is full lines are dropped, and their number is printed.
"""

import logging
import os
import queue
import sys
import threading
import time
from io import TextIOWrapper

from agentos.userland.cli.common import printable
from agentos.userland.cli.output_text import printable_output, shows_colours

MAX_LINES = 10_000
COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
LEVELS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}

CONTINUATION = "  | "  # before all lines of a message but the first


class Console(logging.Handler):
    """The log handler of a kernel in the foreground; a context manager."""

    def __init__(self, level: str) -> None:
        super().__init__(level.upper())
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        self._coloured = shows_colours()
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)

    def __enter__(self) -> "Console":
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may not support all characters
        self._thread.start()
        root = logging.getLogger()
        root.addHandler(self)
        root.setLevel(self.level)
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
            self._put("kernel", printable(CONTINUATION + line if number else line), LEVELS.get(record.levelno, "1"))

    def say(self, text: str) -> None:
        """Print a line of the kernel's, whatever the log level."""
        for line in text.splitlines():
            self._put("kernel", printable(line), "1")

    def show(self, name: str, stream: str, text: str) -> None:
        """Print a line of an agent's output; lines that the kernel added to it are in the log already."""
        if stream != "kernel" and self.level <= logging.INFO:
            shown = printable_output(text, self._coloured)
            self._put(name, shown, str(COLOURS[sum(name.encode()) % len(COLOURS)]))

    def _put(self, name: str, text: str, colour: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        tag = f"\x1b[{colour}m{name:>12}\x1b[0m" if self._coloured else f"{name:>12}"
        try:
            self._queue.put_nowait(f"{stamp} {tag} | {text}\n")
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                if self._dropped:
                    line += f"         ({self._dropped} lines were not shown: this terminal was too slow)\n"
                    self._dropped = 0
                sys.stdout.write(line)
                if self._queue.empty():
                    sys.stdout.flush()
            except OSError:
                pass  # a closed terminal is no reason to stop
        try:
            sys.stdout.flush()
        except OSError:  # drop the rest, or Python would try again at exit and report an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
