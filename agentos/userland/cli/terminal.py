"""Our terminal: its modes, and ``agentos exec -t``, which passes keys, size and output between it and a program's."""

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from agentos_sdk.terminal import Terminal

from .common import Failed

READ_SIZE = 4096
ENDINGS = (signal.SIGTERM, signal.SIGHUP)  # ours end at these, after our terminal is as it was
SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def run_in_terminal(path: str, fields: Mapping[str, object]) -> dict[str, Any]:
    """Run a command of EXEC in a terminal that is shown on ours; returns the reply."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failed("-t: expected a terminal as standard input and output")
    cols, rows = shutil.get_terminal_size()
    size = {"rows": rows, "cols": cols, "term": os.environ.get("TERM") or "dumb"}
    with Terminal(path, {**fields, "tty": size}) as terminal, raw_mode(), watch_size() as resized:
        while terminal.executed is None:
            typing = [] if terminal.unsent else [sys.stdin.fileno()]
            readable, writable, _ = select.select(
                [terminal, resized, *typing], [terminal] if terminal.unsent else [], []
            )
            if resized in readable:
                os.read(resized, READ_SIZE)
                terminal.resize(*termios.tcgetwinsize(sys.stdin.fileno()))
            if sys.stdin.fileno() in readable:
                typed = os.read(sys.stdin.fileno(), READ_SIZE)
                if not typed:
                    break  # our terminal is gone
                terminal.type(typed)
            if terminal in writable:
                terminal.send()
            if terminal in readable:
                show(terminal.receive())
    if terminal.executed is None:
        sys.exit(128 + signal.SIGHUP)
    return terminal.executed


def show(text: str) -> None:
    """Write to our terminal as it is: what the program sends to it is for it."""
    data = text.encode()
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def raw_mode() -> AbstractContextManager[None]:
    """Our terminal passes on each key as it comes, Ctrl-C as well."""
    return terminal_mode(tty.setraw, termios.TCSADRAIN)  # what was typed before stays


def single_keys() -> AbstractContextManager[None]:
    """Our terminal passes on each key as it comes, and doesn't show it."""
    return terminal_mode(tty.setcbreak, termios.TCSAFLUSH)


@contextmanager
def terminal_mode(change: Callable[[int, int], object], when: int) -> Iterator[None]:
    """Our terminal in another mode; afterwards, while we are stopped (Ctrl-Z), and after SIGTERM it is as it was."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def stop(number: int, frame: FrameType | None) -> None:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        os.kill(os.getpid(), signal.SIGSTOP)

    def go_on(number: int, frame: FrameType | None) -> None:
        with suppress(termios.error):
            change(fd, termios.TCSADRAIN)

    with raise_on_signals(), handling(stop, signal.SIGTSTP):
        try:
            with handling(go_on, signal.SIGCONT):
                change(fd, when)
                yield
        finally:
            with suppress(termios.error):
                termios.tcsetattr(fd, when, before)


def raise_on_signals() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP raise ``SystemExit``, so that the terminal is restored."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    return handling(end, *ENDINGS)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """These signals call ``handler``; afterwards what they called before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def watch_size() -> Iterator[int]:
    """A descriptor that becomes readable when our terminal has another size."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.signal(signal.SIGWINCH, lambda number, frame: None)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGWINCH, before)
        os.close(read)
        os.close(write)
