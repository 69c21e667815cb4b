"""``agentos top`` in a real terminal: a pty with its own session, keys typed into it."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"  # the terminal's second screen
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")
SLEEP = ("--", "sleep", "1000")


class Top(Terminal):
    """A terminal with ``agentos top`` in it."""

    def __init__(self, kernel: Kernel, *options: str, **more: Any) -> None:
        super().__init__(kernel, "top", *options, **more)

    def end(self) -> int:
        status = super().end()
        until(lambda: LEAVE in self.data, "it leaves the second screen")
        return status


Open = Callable[..., Top]


@pytest.fixture
def open_top(kernel: Kernel, agentos: Agentos) -> Iterator[Open]:
    opened: list[Top] = []

    def start(*options: str, **more: Any) -> Top:
        opened.append(Top(kernel, *options, **more))
        opened[-1].wait_for("q quit")
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_it_shows_the_agents_and_q_ends_it(agentos: Agentos, open_top: Open) -> None:
    agentos("spawn", "watched", *SLEEP)
    top = open_top()

    top.wait_for("watched")
    assert ENTER in top.data
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
    assert name.encode() not in top.data

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
    until(lambda: COLOUR.search(coloured.data) is not None, "the paused one has a colour")

    assert b"halted" in plain.data
    assert not COLOUR.search(plain.data)


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
    terminal = Top(kernel, TERM="no-such-terminal")
    try:
        assert terminal.process.wait(PATIENCE) == 1
        until(lambda: b"--once" in terminal.data, "it says what to do")
        assert b"Traceback" not in terminal.data
    finally:
        terminal.close()
