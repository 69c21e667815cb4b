"""``agentos exec -it`` in a real terminal: keys, size, signals, exit status, and what is left when it ends."""

import contextlib
import fcntl
import os
import pty
import signal
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import CHUNK, EXEC, PATIENCE

SIZE = (31, 97)


class Screen:
    """A terminal in which ``agentos exec`` runs; ``seen`` is all that it has shown."""

    def __init__(self, kernel: Kernel, *arguments: str) -> None:
        self.kernel, self.seen = kernel, b""
        self.fd, slave = pty.openpty()
        termios.tcsetwinsize(slave, SIZE)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            login(slave)
            env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, "TERM": "xterm-256color"}
            os.chdir(kernel.place)
            os.execve(sys.executable, [sys.executable, "-m", "agentos", "exec", *arguments], env)
        self.slave = slave  # open, so that what the terminal is set to can be seen after the end
        self.before = termios.tcgetattr(slave)
        os.set_blocking(self.fd, False)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.fd, 1 << 16):
                self.seen += data
        return self.seen.decode(errors="replace")

    def expect(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.read():
            assert time.monotonic() < deadline, f"it doesn't show {text!r}, but {self.read()!r}"
            time.sleep(0.02)

    def wait(self) -> int:
        """Its exit status; the terminal is then set as before."""
        deadline = time.monotonic() + PATIENCE
        while (ended := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            self.read()
            assert time.monotonic() < deadline, f"it doesn't end; it shows {self.read()!r}"
            time.sleep(0.02)
        self.read()
        self.pid = 0
        assert termios.tcgetattr(self.slave) == self.before
        return os.waitstatus_to_exitcode(ended[1])

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for fd in (self.slave, self.fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def login(slave: int) -> None:
    """As login_tty(3), which Python 3.11 lacks."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(slave, fd)


@pytest.fixture
def screens(kernel: Kernel, agentos: Agentos) -> Iterator[list[Screen]]:
    """The terminals of a test, closed at its end; beside them an agent called held."""
    agentos("spawn", "held", "--", "sleep", "1000")
    made: list[Screen] = []
    yield made
    for screen in made:
        screen.close()


def begin(kernel: Kernel, screens: list[Screen], *arguments: str) -> Screen:
    screens.append(Screen(kernel, *arguments))
    return screens[-1]


def test_a_shell_in_the_jail_by_default(kernel: Kernel, screens: list[Screen]) -> None:
    screen = begin(kernel, screens, "-it", "held")

    screen.type("echo at $(hostname) in $PWD, $TERM, $(stty size)\r")
    screen.expect("at held in /workspace, xterm-256color, 31 97")
    screen.type("exit 7\r")

    assert screen.wait() == 7


def test_ctrl_c_goes_to_the_program_and_not_to_the_command(kernel: Kernel, screens: list[Screen]) -> None:
    screen = begin(kernel, screens, "-it", "held", "sh")
    screen.type("trap \"echo ca''ught\" INT; echo re''ady\r")
    screen.expect("ready")
    screen.type("sh -c \"echo be''gun; exec cat\"\r")  # a shell loses a signal between its fork and exec of cat
    screen.expect("begun")

    screen.type("\x03")

    screen.expect("caught")
    screen.type("exit\r")
    screen.wait()


def test_job_control_and_a_controlling_terminal(kernel: Kernel, screens: list[Screen]) -> None:
    code = "import os; print(os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpgrp(), os.isatty(2))"
    code += "; print(sorted(os.listdir('/proc/self/fd')))"
    screen = begin(kernel, screens, "-it", "held", "--", "python3", "-c", code)

    screen.expect("True True True")
    screen.expect("['0', '1', '2', '3']")  # the last is the directory itself

    assert screen.wait() == 0


def test_its_size_follows_that_of_the_terminal(kernel: Kernel, screens: list[Screen]) -> None:
    screen = begin(kernel, screens, "-it", "held", "sh")
    screen.type("trap 'stty size' WINCH; echo re''ady\r")
    screen.expect("ready")

    termios.tcsetwinsize(screen.fd, (50, 132))

    while "50 132" not in screen.read():
        screen.type("\r")  # a trap runs between two commands
        time.sleep(0.1)
    screen.type("\x04")
    screen.wait()


def test_a_terminal_that_goes_away_ends_the_program(kernel: Kernel, screens: list[Screen]) -> None:
    screen = begin(kernel, screens, "-it", "held", "sh")
    screen.type("trap 'echo hung up > /workspace/told; exit' HUP; echo re''ady; while :; do sleep 0.1; done\r")
    screen.expect("ready")

    os.kill(screen.pid, signal.SIGKILL)

    with AgentOSClient(kernel.socket) as client:
        shown = ["sh", "-c", "cat /workspace/told; ls /proc | grep -c '^[0-9]'"]
        until(lambda: "hung up" in client.exec(shown, name="held")["stdout"], "it was told")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_leaves_the_terminal_as_it_was(
    kernel: Kernel, screens: list[Screen], number: signal.Signals
) -> None:
    screen = begin(kernel, screens, "-it", "held", "sh")
    screen.type("echo re''ady\r")
    screen.expect("ready")

    os.kill(screen.pid, number)

    assert screen.wait() == 128 + number


def test_a_large_paste_arrives_whole(kernel: Kernel, screens: list[Screen]) -> None:
    lines = [f"line {number} {'x' * 60}" for number in range(3000)]
    count = sum(len(line) + 1 for line in lines)
    screen = begin(kernel, screens, "-it", "held", "sh")
    screen.type("stty -echo; echo re''ady; wc -c; echo do''ne\r")
    screen.expect("ready")
    data = "".join(f"{line}\n" for line in lines).encode()
    while data:
        screen.read()
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(screen.fd, data[:4096]) :]
    screen.type("\x04")

    screen.expect("done")
    assert str(count) in screen.read()
    screen.type("exit\r")
    screen.wait()


def test_nothing_may_be_typed_into_the_terminal_from_inside(kernel: Kernel, screens: list[Screen]) -> None:
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"
    screen = begin(kernel, screens, "-it", "held", "--", "python3", "-c", code)

    screen.expect("PermissionError")

    assert screen.wait() == 1


def test_the_host_has_a_terminal_too(kernel: Kernel, screens: list[Screen]) -> None:
    screen = begin(kernel, screens, "-it", "--host", "--", "sh", "-c", "stty size; tty; pwd")

    screen.expect(f"{kernel.place}")

    assert screen.wait() == 0
    assert "31 97" in screen.read()


def test_a_terminal_is_needed_for_one(kernel: Kernel, agentos: Agentos, screens: list[Screen]) -> None:
    done = agentos("exec", "-t", "held", "sh")

    assert (done.returncode, done.stderr) == (1, "agentos: -t: expected a terminal as standard input and output\n")


def test_without_a_name_the_host_has_to_be_meant(agentos: Agentos) -> None:
    refused = agentos("exec", "--", "pwd")

    assert refused.returncode == 2
    assert "say --host" in refused.stderr
    assert agentos("exec", "--host", "--", "pwd").returncode == 0


def test_input_that_is_no_frame_ends_the_command(kernel: Kernel, screens: list[Screen]) -> None:
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
