"""A service manager at the other end of NOTIFY_SOCKET: a real datagram socket, as systemd's is."""

import contextlib
import os
import secrets
import signal
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agentos.userland.cli.approvals.notify import ServiceManager
from tests.support.kernel import Kernel, running
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

TREE = '[[supervisor.children]]\nname = "worker"\ncommand = ["sleep", "1000"]\n'
WORKS = {"WATCHDOG": "1"}
SHOW = ("sh", "-c", "tr '\\0' '\\n' </proc/self/environ; exec sleep 1000")


@contextlib.contextmanager
def serve(name: str) -> Iterator[socket.socket]:
    """The socket that NOTIFY_SOCKET names, which is told who sends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listening.settimeout(PATIENCE)
        yield listening


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Its socket, and what it puts into NOTIFY_SOCKET."""
    name = str(tmp_path / "notify")
    with serve(name) as listening:
        yield listening, name


def heard(listening: socket.socket) -> tuple[int, dict[str, str]]:
    """The next datagram: the pid of its sender and its fields."""
    data, ancillary, _, _ = listening.recvmsg(4096, socket.CMSG_SPACE(12))
    [(_, kind, credentials)] = ancillary
    assert kind == socket.SCM_CREDENTIALS
    return struct.unpack("3i", credentials)[0], dict(line.split("=", 1) for line in data.decode().split("\n"))


def heard_beside(usual: dict[str, str], listening: socket.socket) -> tuple[int, dict[str, str]]:
    """The next datagram with other fields."""
    return next(found for found in iter(partial(heard, listening), None) if found[1] != usual)


@pytest.mark.usefixtures("kernels")
def test_the_manager_hears_from_the_kernel_itself_that_it_is_ready_works_and_stops(
    manager: tuple[socket.socket, str],
) -> None:
    listening, name = manager
    stubborn = TREE.replace('["sleep", "1000"]', '["sh", "-c", "trap : TERM; while :; do sleep 0.1; done"]')
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"}
    with running(stubborn + 'shutdown = "infinity"\n', environment) as kernel:
        sender, news = heard(listening)
        assert (sender, news["READY"]) == (kernel.pid, "1")
        assert news["STATUS"].startswith("ready; isolation ")
        with kernel.client() as client:
            assert [agent["state"] for agent in client.list_agents()] == ["running"]
        assert [heard(listening)[1] for _ in range(3)] == [WORKS] * 3

        kernel.process.send_signal(signal.SIGTERM)
        sender, news = heard_beside(WORKS, listening)
        assert (sender, news["STOPPING"]) == (kernel.pid, "1")
        assert kernel.process.poll() is None  # it waits for the one that doesn't stop
        kernel.process.send_signal(signal.SIGTERM)
        assert kernel.wait_end() == 0
        assert heard_beside(WORKS, listening)[1] == {"STOPPING": "1", "STATUS": "stopped"}


@pytest.mark.usefixtures("kernels")
def test_a_kernel_whose_root_gave_up_says_why(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    bad = (
        TREE.replace('["sleep", "1000"]', '["sh", "-c", "sleep 1; exit 3"]')
        + 'max_restarts = 0\non_give_up = "escalate"\n'
    )
    kernel = Kernel(bad, {"NOTIFY_SOCKET": name})
    try:
        heard(listening)

        last = heard(listening)[1]

        assert last["STATUS"].startswith("the root supervisor gave up: ")
        assert kernel.wait_end() == 1
    finally:
        kernel.clean_up()


def test_a_watchdog_is_for_the_process_that_is_named() -> None:
    own, other = str(os.getpid()), str(os.getppid())

    assert ServiceManager.from_environment({"WATCHDOG_USEC": "3000000"}).watchdog == 3.0
    assert ServiceManager.from_environment({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": own}).watchdog == 3.0
    assert ServiceManager.from_environment({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": other}).watchdog is None


@each_row("microseconds", ["", "0", "-1", "soon", "1.5"])
def test_a_watchdog_without_a_time_is_none(microseconds: str) -> None:
    assert ServiceManager.from_environment({"WATCHDOG_USEC": microseconds}).watchdog is None


def test_no_process_that_the_kernel_starts_can_find_the_manager() -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}

    assert ServiceManager.from_environment(environment).address == "/run/x"
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_line_of_news_stays_one_line(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@agentos-test-{secrets.token_hex(8)}" if is_abstract else str(tmp_path / "notify")
    with serve(name) as listening:
        assert ServiceManager.from_environment({"NOTIFY_SOCKET": name}).notify("STATUS=gave up\nMAINPID=1")

        assert heard(listening)[1] == {"STATUS": "gave up MAINPID=1"}


@pytest.mark.usefixtures("kernels")
def test_no_agent_has_it_in_its_environment(manager: tuple[socket.socket, str]) -> None:
    _, name = manager
    with running(None, {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000"}) as kernel:
        for isolation in ("standard", "none"):
            kernel.spawn(isolation, SHOW, isolation=isolation)
            kernel.wait_line(rf"{isolation} \| AGENTOS_LIFE=")
            kernel.wait_line(rf"{isolation} \| AGENTOS_AGENT_NAME=")

        assert "NOTIFY_SOCKET" not in kernel.said
        assert "WATCHDOG" not in kernel.said


@each_row("name", ["/nowhere/notify", "relative", "@nobody-listens-here", "vsock:2:1", "/" + "x" * 200])
def test_a_manager_that_does_not_listen_is_not_told(name: str) -> None:
    assert not ServiceManager.from_environment({"NOTIFY_SOCKET": name}).notify("READY=1")


@pytest.mark.usefixtures("kernels")
def test_a_manager_that_does_not_listen_does_no_harm_to_the_kernel() -> None:
    with running(TREE, {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "20000"}) as kernel:
        assert kernel.answers()


@pytest.mark.usefixtures("kernels")
def test_a_manager_that_is_busy_is_told_when_it_has_room(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        filled = fill(name)
        with running(TREE, {"NOTIFY_SOCKET": name}) as kernel:
            assert kernel.answers()  # it doesn't wait for its manager
            listening.settimeout(PATIENCE)
            for _ in range(filled):
                assert listening.recv(4096) == b"noise"

            assert listening.recv(4096).startswith(b"READY=1\n")


def fill(name: str) -> int:
    """Send until a socket's queue is full; how many fitted."""
    count = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as noise:
        noise.setblocking(False)
        while True:
            try:
                noise.sendto(b"noise", name)
            except BlockingIOError:
                return count
            count += 1
