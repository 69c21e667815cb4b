"""``agentos exec -it`` in a real terminal: keys, size, signals, exit status, and what is left when it ends."""

import signal
from collections.abc import Callable, Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, until
from tests.support.wire import CHUNK, EXEC

Begin = Callable[..., Terminal]

LINES, COLUMNS = 31, 97


@pytest.fixture
def begin(kernel: Kernel, agentos: Agentos) -> Iterator[Begin]:
    """``begin("-it", "held")``: ``agentos exec`` in a terminal, closed after the test. An agent called held runs."""
    agentos("spawn", "held", "--", "sleep", "1000")
    made: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        made.append(Terminal(kernel, "exec", *arguments, lines=LINES, columns=COLUMNS))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def test_a_shell_in_the_jail_by_default(begin: Begin) -> None:
    screen = begin("-it", "held")

    screen.type("echo at $(hostname) in $PWD, $TERM, $(stty size)\r")
    screen.wait_for("at held in /workspace, xterm-256color, 31 97")
    screen.type("exit 7\r")

    assert screen.end() == 7


def test_ctrl_c_goes_to_the_program_and_not_to_the_command(begin: Begin) -> None:
    screen = begin("-it", "held", "sh")
    screen.type("trap \"echo ca''ught\" INT; echo re''ady\r")
    screen.wait_for("ready")
    screen.type("sh -c \"echo be''gun; exec cat\"\r")  # a shell loses a signal between its fork and exec of cat
    screen.wait_for("begun")

    screen.type("\x03")

    screen.wait_for("caught")
    screen.type("exit\r")
    screen.end()


def test_job_control_and_a_controlling_terminal(begin: Begin) -> None:
    code = "import os; print(os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpgrp(), os.isatty(2))"
    code += "; print(sorted(os.listdir('/proc/self/fd')))"
    screen = begin("-it", "held", "--", "python3", "-c", code)

    screen.wait_for("True True True")
    screen.wait_for("['0', '1', '2', '3']")  # the last is the directory itself

    assert screen.end() == 0


def test_its_size_follows_that_of_the_terminal(begin: Begin) -> None:
    screen = begin("-it", "held", "sh")
    screen.type("trap 'stty size' WINCH; echo re''ady\r")
    screen.wait_for("ready")

    screen.resize(50, 132)

    def is_told() -> bool:
        screen.type("\r")  # a trap runs between two commands
        return "50 132" in screen.shown

    until(is_told, "the program knows the new size")
    screen.type("\x04")
    screen.end()


def test_a_terminal_that_goes_away_ends_the_program(kernel: Kernel, begin: Begin) -> None:
    screen = begin("-it", "held", "sh")
    screen.type("trap 'echo hung up > /workspace/told; exit' HUP; echo re''ady; while :; do sleep 0.1; done\r")
    screen.wait_for("ready")

    screen.process.kill()

    with AgentOSClient(kernel.socket) as client:
        shown = ["sh", "-c", "cat /workspace/told; ls /proc | grep -c '^[0-9]'"]
        until(lambda: "hung up" in client.exec(shown, name="held")["stdout"], "it was told")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_leaves_the_terminal_as_it_was(begin: Begin, number: signal.Signals) -> None:
    screen = begin("-it", "held", "sh")
    screen.type("echo re''ady\r")
    screen.wait_for("ready")

    screen.process.send_signal(number)

    assert screen.end() == 128 + number


def test_a_large_paste_arrives_whole(begin: Begin) -> None:
    lines = [f"line {number} {'x' * 60}" for number in range(3000)]
    count = sum(len(line) + 1 for line in lines)
    screen = begin("-it", "held", "sh")
    screen.type("stty -echo; echo re''ady; wc -c; echo do''ne\r")
    screen.wait_for("ready")
    text = "".join(f"{line}\n" for line in lines)
    for at in range(0, count, 4096):  # a terminal takes no more at once
        screen.type(text[at : at + 4096])
    screen.type("\x04")

    screen.wait_for("done")
    assert str(count) in screen.shown
    screen.type("exit\r")
    screen.end()


def test_nothing_may_be_typed_into_the_terminal_from_inside(begin: Begin) -> None:
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"
    screen = begin("-it", "held", "--", "python3", "-c", code)

    screen.wait_for("PermissionError")

    assert screen.end() == 1


def test_the_host_has_a_terminal_too(kernel: Kernel, begin: Begin) -> None:
    screen = begin("-it", "--host", "--", "sh", "-c", "stty size; tty; pwd")

    screen.wait_for(f"{kernel.place}")

    assert screen.end() == 0
    assert "31 97" in screen.shown


def test_a_terminal_is_needed_for_one(agentos: Agentos) -> None:
    done = agentos("exec", "-t", "held", "sh")

    assert (done.returncode, done.stderr) == (1, "agentos: -t: expected a terminal as standard input and output\n")


def test_without_a_name_the_host_has_to_be_meant(agentos: Agentos) -> None:
    refused = agentos("exec", "--", "pwd")

    assert refused.returncode == 2
    assert "say --host" in refused.stderr
    assert agentos("exec", "--host", "--", "pwd").returncode == 0


@pytest.mark.usefixtures("begin")
def test_input_that_is_no_frame_ends_the_command(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        wire.hello()
        wire.send(EXEC, {"name": "held", "command": ["sleep", "1000"], "tty": {"rows": 24, "cols": 80}}, 5)
        wire.send(CHUNK, {"stdin": "no base64!"}, 5)
        while (reply := wire.receive()).op == CHUNK:
            pass

    assert (reply.json["code"], reply.json["error"]) == (
        "bad_request",
        "CHUNK: stdin: expected base64, with padding and without line breaks",
    )
