"""The programs of the measurement judge replies rightly; how fast anything is, is not asked here."""

import contextlib
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.speed.tools import FLAGS, NoCompilerError, Tools, compile_tools
from tests.support.wire import PATIENCE

HEADER = struct.Struct("<IIBQ")  # magic, id, opcode, length
MAGIC = 0x41474E54
CALLER = 7

Frame = tuple[int, int, int, bytes]  # magic, id, opcode, body
Answer = Callable[[Frame], Frame]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    try:
        return compile_tools(tmp_path_factory.mktemp("tools"))
    except NoCompilerError as error:
        pytest.skip(f"the load and the floor are NOT tested: {error}")


@pytest.fixture
def floor(tools: Tools, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "floor.sock"
    with subprocess.Popen([tools.floor, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield path
        process.terminate()


def run(tools: Tools, path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    *options, mode = argv
    return subprocess.run(
        [tools.load, *options, path, *mode.split()], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize(
    ("mode", "name", "n"),
    [("rtt", "rtt", 1), ("flight 32", "flight", 32), ("conns 50", "conns", 50), ("paced 4", "paced", 4)],
)
def test_each_mode_prints_one_line_of_sane_numbers(
    tools: Tools, floor: Path, version: str, mode: str, name: str, n: int
) -> None:
    ran = run(tools, floor, "-e", *(["-2"] if version == "2" else []), "-c", "100", "-w", "5", "-i", "200", mode)

    assert (ran.returncode, ran.stderr) == (0, "")
    numbers = json.loads(ran.stdout)
    assert (numbers["mode"], numbers["n"], numbers["version"], numbers["body"]) == (name, n, int(version), 64)
    assert 100 <= numbers["replies"] <= 100 + n  # what is in flight at the end is waited for, and counts
    assert 0 < numbers["p50_us"] <= numbers["p99_us"] <= numbers["max_us"]
    assert numbers["rate"] == pytest.approx(numbers["replies"] / numbers["seconds"], rel=0.01)


def test_a_body_of_16_mib_passes_an_echo_that_reads_and_writes_in_turn(tools: Tools, floor: Path) -> None:
    ran = run(tools, floor, "-e", "-c", "2", "-w", "0", "heavy noop")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["body"] == 16 << 20


class FalseKernel:
    """Answers as a kernel would, then as ``answer`` says, on a thread of its own."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path = path
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(ConnectionError):  # a load that has found the lie just goes
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        seen, versioned = 0, False
        while header := connection.recv(HEADER.size, socket.MSG_WAITALL):
            magic, request, opcode, length = HEADER.unpack(header)
            body = connection.recv(length, socket.MSG_WAITALL)
            reply: Frame = (magic, request if versioned else CALLER, opcode, body)
            if opcode == 0xFE:
                versioned, reply = True, (magic, CALLER, opcode, b'{"success": true, "protocol": 2}')
            seen += opcode == 0
            if seen > 3:  # the first ones are right, or nothing would be proven about the rest
                reply = self._answer(reply)
            magic, answered, opcode, body = reply
            connection.sendall(HEADER.pack(magic, answered, opcode, len(body)) + body)


@pytest.fixture
def false_kernel(tmp_path: Path) -> Iterator[Callable[[Answer], Path]]:
    kernels: list[FalseKernel] = []

    def serve(answer: Answer) -> Path:
        kernels.append(FalseKernel(tmp_path / "false.sock", answer))
        return kernels[-1].path

    yield serve
    for kernel in kernels:
        kernel.close()


LIES: dict[str, Answer] = {
    "a reply's body is not the body that was sent": lambda f: (*f[:3], f[3][:-1] + bytes([f[3][-1] ^ 1])),
    "a reply carries another request's body": lambda f: (*f[:3], bytes([f[3][0] ^ 1]) + f[3][1:]),
    "a reply has 63 bytes, expected 64": lambda f: (*f[:3], f[3][:-1]),
    "a reply has opcode 0x01, expected 0x00": lambda f: (f[0], f[1], 1, f[3]),
    "instead of the magic": lambda f: (f[0] ^ 1, *f[1:]),
    "a reply has id": lambda f: (f[0], f[1] + 1000, *f[2:]),
}


@pytest.mark.parametrize("options", [(), ("-2",)], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", ["rtt", "flight 8", "conns 1", "paced 1"])
@pytest.mark.parametrize("complaint", LIES)
def test_a_wrong_reply_ends_the_run_with_an_error(
    tools: Tools, false_kernel: Callable[[Answer], Path], complaint: str, mode: str, options: tuple[str, ...]
) -> None:
    ran = run(tools, false_kernel(LIES[complaint]), *options, "-c", "50", "-w", "0", mode)

    assert ran.returncode == 1
    assert complaint in ran.stderr
    assert complaint in json.loads(ran.stdout)["error"]


@pytest.mark.parametrize("options", [(), ("-2",)], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", ["rtt", "flight 8", "conns 1", "paced 1"])
def test_right_replies_of_a_kernel_are_counted(
    tools: Tools, false_kernel: Callable[[Answer], Path], mode: str, options: tuple[str, ...]
) -> None:
    ran = run(tools, false_kernel(lambda frame: frame), *options, "-c", "50", "-w", "0", mode)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["replies"] >= 50


def test_a_kernel_that_gives_its_caller_no_id_is_found_out(tools: Tools, floor: Path) -> None:
    ran = run(tools, floor, "-c", "5", "rtt")  # the floor, without -e

    assert ran.returncode == 1
    assert "gave this caller no id" in json.loads(ran.stdout)["error"]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NoCompilerError, match="install one that is called cc"):
        compile_tools(tmp_path)


def test_warnings_of_the_compiler_are_errors() -> None:
    assert {"-Wall", "-Wextra", "-Werror"} <= set(FLAGS)
