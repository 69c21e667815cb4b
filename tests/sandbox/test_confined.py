"""A program of the host's that reads what an agent has made: what a fault in it could be used for."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from agentos.sandbox.confined import NOBODY, confine
from agentos.sandbox.filters import landlock

ROOT = os.geteuid() == 0
HAS_LANDLOCK = landlock.probe_abi() > 0
UID = NOBODY if ROOT else os.geteuid()


def run(script: str, *reads: Path) -> "subprocess.CompletedProcess[str]":
    command = confine(["/bin/bash", "-c", script], 64 << 20, 1 << 16, [str(path) for path in reads], UID)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A directory that its user alone may enter."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private/file").write_text("content")
    (tmp_path / "private/file").chmod(0o600)
    (tmp_path / "other").write_text("secret")
    return tmp_path / "private"


def test_it_reads_what_is_named_and_the_null_device(private: Path) -> None:
    done = run(f"echo $(<{private}/file) 2>/dev/null </dev/null", private)

    assert done.stdout == "content\n", done.stderr


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this Linux has no Landlock")
@pytest.mark.parametrize(
    "script", ["read x < {0}/other", ": > {0}/private/new", "echo x >> {0}/private/file", ": > {0}/new"]
)
def test_it_reads_nothing_else_and_writes_nothing(private: Path, script: str) -> None:
    done = run(script.format(private.parent), private)

    assert "Permission denied" in done.stderr
    assert (private / "file").read_text() == "content"
    assert {path.name for path in private.parent.rglob("*")} == {"private", "file", "other"}


def test_it_starts_no_program_and_signals_none() -> None:
    assert "fork" in run("/bin/true; echo ran").stderr
    assert "not permitted" in run(f"kill -0 {os.getpid()}").stderr


def test_it_opens_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run(f": < /dev/tcp/127.0.0.1/{server.getsockname()[1]}")

    assert "socket" in done.stderr or "Permission denied" in done.stderr, done.stderr
    assert done.returncode != 0


def test_it_ignores_no_signal_that_python_does() -> None:
    assert run("trap -p SIGPIPE SIGXFSZ; echo done").stdout == "done\n"


def test_its_memory_and_output_are_limited_and_it_isnt_root() -> None:
    assert run("ulimit -d; ulimit -f; ulimit -c; echo $UID").stdout.split() == ["65536", "64", "0", str(UID)]
