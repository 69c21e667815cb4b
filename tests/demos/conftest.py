"""Runs a demo as a user would: one command, from the top of the repository."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kernel import until

ROOT = Path(__file__).parents[2]
LONGEST = 240.0  # seconds; the longest demo takes twelve on a machine that has nothing else to do

Run = Callable[..., str]
Interrupted = Callable[[str, str], None]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for all that a demo leaves; short, for a socket's path has at most 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="aos-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def environment(kernels: None, place: Path) -> dict[str, str]:
    """Everything temporary and every home is in ``place``, which marks the processes too."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "LANG", "LC_", "COVERAGE"))}
    return kept | {"HOME": str(place), "TMPDIR": str(place), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def run(place: Path, environment: dict[str, str]) -> Run:
    """``run("hello")``: the demo's output, having ended with status 0 and left neither a process nor a file."""

    def run_demo(name: str, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", f"demos.{name}", *args],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        left_nothing(place)
        return done.stdout

    return run_demo


@pytest.fixture
def interrupted(environment: dict[str, str]) -> Interrupted:
    """``interrupted("hello", when)``: the demo gets Ctrl-C as soon as it has said ``when``, and ends of that."""

    def interrupt(name: str, when: str) -> None:
        demo = [sys.executable, "-m", f"demos.{name}"]
        with subprocess.Popen(demo, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if when in line:
                    break
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=LONGEST)
        assert running.returncode == 128 + signal.SIGINT

    return interrupt


def left_nothing(place: Path) -> None:
    """Return when neither a process nor a file of a demo is left: what it started may end shortly after it."""
    until(lambda: not processes_of(place), "its processes have ended")
    until(lambda: not os.listdir(place), "its files are removed")


def processes_of(place: Path) -> list[str]:
    """The command lines of processes whose environment names ``place``: kernels by TMPDIR, agents by their socket."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(place).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is another user's
    return found
