"""A directory, a file or a socket of another user: nothing is sent there, nothing of it runs. Replies that are none."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.userland.cli.common import Failed, default_config
from agentos.userland.cli.kernel.run import load_configuration
from agentos.userland.cli.main import cli
from agentos_sdk import ConnectionFailed
from agentos_sdk.blocking import AgentOSClient
from agentos_sdk.frames import frame
from agentos_sdk.project import find_project
from tests.cli.agents.test_projects import OTHER, ROOT, Desk, desk, place
from tests.support.wire import PATIENCE

__all__ = ["desk", "place"]  # fixtures

only_root = pytest.mark.skipif(not ROOT, reason="only root can give a file to another uid")
LISTENER = """
import os, socket, sys
os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o777)
    server.listen()
    print("listening", flush=True)
    while True:
        with server.accept()[0] as peer:
            print(peer.recv(1 << 16), flush=True)
"""
COMMANDS = (
    ("ps",),
    ("status",),
    ("think", "the secret"),
    ("spawn", "worker", "--env", "KEY=the secret", "--", "true"),
    ("cp", "agentos.toml", "worker:there"),
    ("task", "the secret"),
    ("exec", "worker", "--", "echo", "the secret"),
    ("state", "set", "key", "the secret"),
    ("approvals",),
    ("events",),
)
CHILD = '[[supervisor.children]]\nname = "mine"\nisolation = "none"\ncommand = ["touch", "ran"]\n'


class Stranger:
    """A directory of another uid; its ``agentos.toml`` names the socket on which that uid listens."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        directory.chmod(0o755)
        self.file = directory / "agentos.toml"
        self.file.write_text(f'[kernel]\nsocket = "trap"\n{CHILD}')
        for path in (directory, self.file):
            os.chown(path, OTHER, OTHER)
        self.trap = str(directory / "trap")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", LISTENER, self.trap, str(OTHER)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"

    def heard(self) -> str:
        """Ends it, and returns all that it was sent."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=PATIENCE)[0].replace("b''\n", "")


@pytest.fixture
def stranger(place: Path) -> Iterator[Stranger]:
    place.chmod(0o755)
    found = Stranger(place / "theirs")
    yield found
    found.process.kill()
    found.process.communicate()


@only_root
def test_in_a_strangers_directory_no_command_sends_anything(desk: Desk, stranger: Stranger) -> None:
    for words in COMMANDS:
        status, printed = desk.type(stranger.directory, *words)
        assert status == 1, printed
        assert f"{stranger.file} belongs to uid {OTHER}" in printed, words
        assert len(printed.splitlines()) == 1, printed

    assert stranger.heard() == ""


@only_root
@pytest.mark.parametrize(
    "words", [("run",), ("check",), ("service", "install", "--print"), ("permissions", "show", "such")]
)
def test_a_strangers_file_is_not_taken_unless_it_is_named(
    desk: Desk, stranger: Stranger, words: tuple[str, ...]
) -> None:
    status, printed = desk.type(stranger.directory, *words)

    assert status == 1, printed
    assert f"belongs to uid {OTHER}" in printed
    assert not (stranger.directory / "ran").exists()

    if words == ("check",):
        assert "fine: 1 agent" in desk.type(stranger.directory, "check", "agentos.toml")[1]


@only_root
def test_the_file_that_was_read_is_judged_not_what_was_there_before(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stranger.directory)
    os.chown(stranger.file, 0, 0)
    assert default_config(Path("agentos.toml"))
    os.chown(stranger.file, OTHER, OTHER)  # as its owner does between the look and the reading

    with pytest.raises(Failed, match=f"belongs to uid {OTHER}"):
        load_configuration(Path("agentos.toml"), as_json=False, named=False)
    assert load_configuration(Path("agentos.toml"), as_json=False, named=True).owners == {OTHER}


@only_root
def test_a_strangers_symlink_to_a_file_of_ours_is_not_taken(
    desk: Desk, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = desk.project("ours", '[kernel]\nsocket = "trap"\n') / "agentos.toml"
    stranger.file.unlink()
    stranger.file.symlink_to(ours)
    os.chown(stranger.file, OTHER, OTHER, follow_symlinks=False)
    monkeypatch.chdir(stranger.directory)

    with pytest.raises(ConnectionFailed, match=f"belongs to uid {OTHER}"):
        find_project()


@only_root
def test_under_sudo_the_callers_own_directory_is_his(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stranger.directory)
    monkeypatch.setenv("SUDO_UID", str(OTHER))

    assert find_project().socket == stranger.trap
    with AgentOSClient():
        pass


@only_root
def test_our_own_file_that_names_a_strangers_socket_sends_nothing_either(desk: Desk, stranger: Stranger) -> None:
    ours = desk.project("ours", f'[kernel]\nsocket = "{stranger.trap}"\n')

    for words in COMMANDS:
        status, printed = desk.type(ours, *words)
        assert status == 1, printed
        assert f"is a socket of uid {OTHER}, not yours" in printed, words

    assert stranger.heard() == ""


@only_root
def test_every_client_looks_at_the_peer_and_a_named_socket_is_taken(
    desk: Desk, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = desk.project("ours", f'[kernel]\nsocket = "{stranger.trap}"\n')
    clients = {
        "blocking": "from agentos_sdk import AgentOSClient; AgentOSClient().echo('secret')",
        "stream": "from agentos_sdk import AgentOSClient; next(AgentOSClient().follow_approvals())",
        "Trio": "import trio, agentos_sdk\nasync def main():\n async with agentos_sdk.connect(): pass\ntrio.run(main)",
        "asyncio": "import asyncio\nfrom agentos_sdk.adapters.connection import KernelConnection\n"
        "from agentos_sdk.opcodes import Op\nasyncio.run(KernelConnection().acall(Op.LIST, {}))",
    }
    for name, code in clients.items():
        done = subprocess.run([sys.executable, "-c", code], cwd=ours, env=desk.env, capture_output=True, text=True)
        assert f"is a socket of uid {OTHER}, not yours" in done.stderr, (name, done.stderr)

    monkeypatch.chdir(desk.place)
    with AgentOSClient(stranger.trap):
        pass
    monkeypatch.chdir(ours)
    monkeypatch.setenv("AGENTOS_SOCKET", stranger.trap)
    with AgentOSClient():
        pass
    assert stranger.heard() == ""


BODIES = {
    "nothing": b"",
    "no JSON": b"\xff\x00",
    "a number": b"5",
    "null": b"null",
    "an array": b"[1, null]",
    "an empty object": b"{}",
    "success alone": b'{"success":true}',
    "other types": b'{"success":true,"agents":7,"pending":"no","attention":{"a":1},"agent_id":"x","lines":3}',
    "a failure without words": b'{"success":false}',
    "a failure with a field that is an argument": b'{"success":false,"error":"no","message":1,"self":2}',
    "too deep": b"[" * 100_000,
}


@pytest.fixture
def liar(desk: Desk) -> Iterator[dict[str, bytes]]:
    """A program of this user that answers every frame with ``body`` where a kernel should be."""
    said = {"body": b""}
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(desk.place / "liar"))
    server.listen()

    def answer(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(1 << 16):
                op, number = data[8], int.from_bytes(data[4:8], "big")
                try:
                    peer.sendall(frame(number, op, said["body"]))
                except OSError:
                    return

    def serve() -> None:
        while True:
            try:
                peer = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    yield said
    server.shutdown(socket.SHUT_RDWR)
    thread.join()
    server.close()


@pytest.mark.parametrize("name", BODIES)
def test_a_reply_that_is_none_gives_a_line_and_no_traceback(
    desk: Desk, liar: dict[str, bytes], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.project("shop", f'[kernel]\nsocket = "{desk.place}/liar"\n'))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(desk.place))
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.place))
    liar["body"] = BODIES[name]
    more = (("tree",), ("logs", "x"), ("inspect", "x"), ("usage",), ("permissions", "get", "x"), ("audit",), ("tasks",))

    for words in itertools.chain(COMMANDS, more):
        ended = CliRunner().invoke(cli, words)

        assert ended.exception is None or isinstance(ended.exception, SystemExit), (words, ended.exc_info)
        assert len(ended.output.splitlines()) <= 3, (words, ended.output)
        assert ended.exit_code in (0, 1, 3), (words, ended.output)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("check", '[[agents]]\nname = "any"\nscript = "{}"\n'),
        ("check", '[llm.offline]\nrules = "{}"\n'),
        ("run", '[llm.offline]\nrules = "{}"\n'),
    ],
)
def test_what_is_wrong_with_a_strangers_file_writes_nothing_to_the_terminal(
    tmp_path: Path, command: str, text: str
) -> None:
    file = tmp_path / "agentos.toml"
    file.write_text(text.format("\\u001b]0;title\\u0007\\nagentos.toml: fine"))

    done = CliRunner().invoke(cli, [command, str(file)])

    assert done.exit_code in (1, 2), done.output
    assert all(line.isprintable() for line in done.output.splitlines())
    assert "\\x1b]0;title\\x07\\nagentos.toml: fine" in done.output
