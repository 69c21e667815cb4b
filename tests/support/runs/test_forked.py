"""A forked command of a shell ends, and is ended, as one that is executed."""

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import until
from tests.support.runs.forked import Commands
from tests.support.wire import PATIENCE


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    commands.close()


@pytest.fixture
def kernel(commands: Commands, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """The client of a kernel that is ready."""
    words = shlex.join(["run", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")])
    script = f"PATH={commands.directory}:$PATH; agentos {words} & echo $!; wait $!"
    with subprocess.Popen(["bash", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as bash:
        assert bash.stdout is not None
        yield bash
        bash.kill()


def in_bash(commands: Commands, script: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    words = ["bash", "-c", f"PATH={commands.directory}:$PATH; {script}"]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)


def is_served(tmp_path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(tmp_path / "s")) == 0


def test_its_output_directory_and_status_are_those_of_the_command(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text("[supervisor]\nintensty = 3\n")

    done = in_bash(commands, 'agentos check; echo "status $?"; agentos --help | head -1', tmp_path)

    assert done.stdout.splitlines() == ["status 1", "Usage: agentos [OPTIONS] COMMAND [ARGS]..."]
    assert "intensty" in done.stderr


@pytest.mark.usefixtures("kernels")
def test_a_signal_reaches_it(kernel: "subprocess.Popen[str]", tmp_path: Path) -> None:
    assert kernel.stdout is not None
    client = int(next(line for line in kernel.stdout if line.strip().isdigit()))
    until(lambda: is_served(tmp_path), "the kernel serves")

    os.kill(client, signal.SIGTERM)

    assert kernel.wait(PATIENCE) == 0
    assert not (tmp_path / "s").exists()


@pytest.mark.usefixtures("kernels")
def test_it_ends_with_a_client_that_is_killed(kernel: "subprocess.Popen[str]", tmp_path: Path) -> None:
    assert kernel.stdout is not None
    client = int(next(line for line in kernel.stdout if line.strip().isdigit()))
    until(lambda: is_served(tmp_path), "the kernel serves")

    os.kill(client, signal.SIGKILL)

    until(lambda: not is_served(tmp_path), "the kernel has ended")
