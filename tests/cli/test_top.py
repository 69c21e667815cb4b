"""``agentos top`` in a real terminal: a pty with its own session, keys typed into it."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"  # the terminal's second screen
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")
SLEEP = ("--", "sleep", "1000")


class Terminal:
    """A terminal with ``agentos top`` in it; ``shown`` is all that was written to it."""

    def __init__(self, kernel: Kernel, *options: str, lines: int = 24, columns: int = 80, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(lines, columns)
        self.before = termios.tcgetattr(slave)
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, "TERM": "xterm-256color", **env}
        self.slave = slave
        self.shown = b""
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            ["setsid", "-c", sys.executable, "-m", "agentos", "top", *options],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=given,
            cwd=kernel.place,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.shown += data

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str, since: int = 0) -> None:
        until(lambda: text.encode() in self.shown[since:], f"{text!r} is shown")

    def end(self) -> int:
        """Wait for its end; the terminal must be as before."""
        status = self.process.wait(PATIENCE)
        until(lambda: LEAVE in self.shown, "it leaves the second screen")
        assert termios.tcgetattr(self.slave) == self.before
        return status


Open = Callable[..., Terminal]


@pytest.fixture
def open_top(kernel: Kernel, agentos: Agentos) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*options: str, **more: Any) -> Terminal:
        opened.append(Terminal(kernel, *options, **more))
        opened[-1].wait_for("q quit")
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.slave)
        os.close(terminal.master)


def test_it_shows_the_agents_and_q_ends_it(agentos: Agentos, open_top: Open) -> None:
    agentos("spawn", "watched", *SLEEP)
    top = open_top()

    top.wait_for("watched")
    assert ENTER in top.shown
    top.type("q")
    assert top.end() == 0


@pytest.mark.parametrize(("how", "status"), [("ctrl-c", 0), ("term", 143), ("hangup", 129)])
def test_the_terminal_is_restored_however_it_ends(agentos: Agentos, open_top: Open, how: str, status: int) -> None:
    top = open_top()
    if how == "ctrl-c":
        top.type("\x03")
    else:
        top.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGHUP)

    assert top.end() == status


def test_a_key_kills_pauses_and_restarts_only_after_yes(kernel: Kernel, agentos: Agentos, open_top: Open) -> None:
    agentos("spawn", "target", "--restart", "permanent", *SLEEP)
    agentos("spawn", "other", *SLEEP)
    top = open_top()
    top.wait_for("other")  # keys act on rows
    top.type("/target\r")
    top.wait_for("filter: target")
    with kernel.client() as client:
        top.type("k")
        top.wait_for("kill target (id")
        top.type("n")
        top.wait_for("nothing was done")
        assert info(client, "target")["state"] == "running"

        top.type("py")
        in_state(client, "target", "paused")
        top.wait_for("is paused")
        top.type("py")
        in_state(client, "target", "running")
        top.wait_for("is running")
        pid = info(client, "target")["pid"]
        top.type("Ry")
        until(lambda: info(client, "target")["pid"] not in (pid, None), "it was restarted")
        top.wait_for("was restarted")
        top.type("ky")
        in_state(client, "target", "exited")
        assert info(client, "other")["state"] == "running"


def test_it_follows_the_size_of_the_terminal(agentos: Agentos, open_top: Open) -> None:
    agentos("spawn", "failing", "--", "no-such-program")
    name = "a-name-that-is-longer-than-the-column-for-names-in-80-columns"
    agentos("spawn", name, *SLEEP)
    top = open_top()
    top.wait_for("…")
    assert name.encode() not in top.shown

    top.resize(50, 200)
    top.process.send_signal(signal.SIGWINCH)
    top.wait_for(name)
    top.resize(3, 10)
    top.process.send_signal(signal.SIGWINCH)
    top.type("q")
    assert top.end() == 0


def test_no_color_is_obeyed(kernel: Kernel, agentos: Agentos, open_top: Open) -> None:
    agentos("spawn", "halted", *SLEEP)
    agentos("pause", "halted")

    agentos("spawn", "another", *SLEEP)
    plain, coloured = open_top(NO_COLOR="1"), open_top()
    for top in (plain, coloured):
        top.type("n\x1bOH")  # the cursor, without colours, goes to the first row
        top.wait_for("name")
    until(lambda: COLOUR.search(coloured.shown) is not None, "the paused one has a colour")

    assert b"halted" in plain.shown
    assert not COLOUR.search(plain.shown)


def test_keys_are_obeyed_while_the_kernel_does_not_answer(kernel: Kernel, agentos: Agentos, open_top: Open) -> None:
    top = open_top()
    os.kill(kernel.pid, signal.SIGSTOP)
    try:
        top.type("t")
        top.wait_for("tree")
        top.type("q")
        assert top.end() == 0
    finally:
        os.kill(kernel.pid, signal.SIGCONT)


def test_in_a_pipe_or_with_once_it_prints_one_table(agentos: Agentos) -> None:
    agentos("spawn", "watched", *SLEEP)

    for shown in (agentos("top"), agentos("top", "--once")):
        header, *lines = shown.stdout.splitlines()
        assert header.split()[:8] == ["NAME", "STATE", "CPU%", "CPU", "MEM", "PEAK", "RESTARTS", "UPTIME"]
        assert any(line.startswith("watched ") for line in lines)
        assert "\x1b" not in shown.stdout


def test_a_terminal_that_is_not_known_is_an_error_in_one_line(kernel: Kernel, agentos: Agentos) -> None:
    terminal = Terminal(kernel, TERM="no-such-terminal")
    try:
        assert terminal.process.wait(PATIENCE) == 1
        until(lambda: b"--once" in terminal.shown, "it says what to do")
        assert b"Traceback" not in terminal.shown
    finally:
        os.close(terminal.slave)
        os.close(terminal.master)
