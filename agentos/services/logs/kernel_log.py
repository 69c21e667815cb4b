"""The kernel's own messages: from Python's logging to the log on disk, from any thread, and limited."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from .kernel_limit import KernelLimit
from .log import Logs


class KernelLog(logging.Handler):
    """Passes the kernel's messages to :class:`Logs`, from any thread; a context manager around the kernel's life.

    Meanwhile this handler, and those that are there at its start, log no more than :class:`KernelLimit` admits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limit = KernelLimit()
        self._early: deque[str] = deque(maxlen=1000)  # before there is a log
        self._write: Callable[[str], None] = self._early.append

    def __enter__(self) -> "KernelLog":
        logging.getLogger().addHandler(self)
        self._limit.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._limit.__exit__(*exc)
        logging.getLogger().removeHandler(self)

    def attach(self, logs: Logs) -> None:
        """Pass on all messages, those from before first. To be called in the event loop."""
        token, thread = trio.lowlevel.current_trio_token(), threading.get_ident()
        while self._early:
            logs.take_kernel_text(self._early.popleft())

        def write(text: str) -> None:
            if threading.get_ident() == thread:
                logs.take_kernel_text(text)
            else:
                token.run_sync_soon(logs.take_kernel_text, text)

        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        with suppress(trio.RunFinishedError):
            self._write(text)
