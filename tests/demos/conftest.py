"""Runs a demo as a user would: one command, from the top of the repository.

Most are forked from a process that has imported what they need, with their kernels and commands.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.kernel import until
from tests.support.runs.forked import Commands

ROOT = Path(__file__).parents[2]
LONGEST = 240.0  # seconds; the longest demo takes twelve on a machine that has nothing else to do

Run = Callable[..., str]
Interrupted = Callable[..., None]
# The interpreter of a forked demo: commands of AgentOS and modules of demos are forked, too.
PYTHON = """#!/bin/sh
case "$1 $2 $3" in
  "-P -m agentos") shift 3; exec {agentos} "$@" ;;
  "-m demos."*)
    text="import runpy; runpy.run_module('$2', {{}}, '__main__', True)"
    shift 2; exec {agentos} -c "$text" "$@" ;;
esac
exec {python} "$@"
"""
DEMO = "import runpy, sys; sys.executable = {python!r}; runpy.run_module({module!r}, {{}}, '__main__', True)"
# These need an interpreter of their own, or their kernel does: its control group, its place in /proc, or its end by
# SIGKILL, which is waited for, is what they show.
EXECUTED = {"conversation_memory", "fault_isolation", "security", "state"}


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
    return kept | {"HOME": str(place), "TMPDIR": str(place)}


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """The interpreter of forked demos."""
    with (
        tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as directory,
        contextlib.closing(Commands(Path(directory))) as commands,
    ):
        program = commands.directory / "python"
        program.write_text(PYTHON.format(agentos=commands.directory / "agentos", python=sys.executable))
        program.chmod(0o755)
        yield str(program)


@pytest.fixture
def run(place: Path, environment: dict[str, str], python: str) -> Run:
    """``run("hello")``: what the demo prints; it ends with status 0, and leaves neither a process nor a file.

    ``given`` is typed to it, ``env`` is set for it. With ``fails`` it ends with status 1, and it is its errors.
    """

    def run_demo(
        name: str, *args: str, given: str = "", env: Mapping[str, str] | None = None, fails: bool = False
    ) -> str:
        module, whole, typed = f"demos.{name}", environment | dict(env or {}), given.encode()
        if name in EXECUTED:
            command = [sys.executable, "-m", module, *args]
            done = subprocess.run(command, cwd=ROOT, env=whole, input=typed, capture_output=True, timeout=LONGEST)
        else:
            text = DEMO.format(python=python, module=module)
            done = fork_server.shared().run(["-c", text, *args], str(ROOT), whole, typed, LONGEST)
        shown, errors = done.stdout.decode(), done.stderr.decode()
        assert (done.returncode, bool(errors)) == (int(fails), fails), shown + errors
        left_nothing(place)
        return errors if fails else shown

    return run_demo


@pytest.fixture
def interrupted(place: Path, environment: dict[str, str], python: str) -> Interrupted:
    """``interrupted("hello", when)``: it gets a signal when it has said ``when``, ends of it, and leaves nothing."""

    def interrupt(name: str, when: str, number: signal.Signals = signal.SIGINT) -> None:
        module = f"demos.{name}"
        process: subprocess.Popen[str] | fork_server.Forked
        if name in EXECUTED:
            command = [sys.executable, "-m", module]
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        else:
            text = DEMO.format(python=python, module=module)
            process = fork_server.shared().start_kernel(["-c", text], str(ROOT), environment)
        assert process.stdout is not None
        with process.stdout as shown:
            assert any(when in line for line in shown)
            process.send_signal(number)
            rest = shown.read()
        assert process.wait(LONGEST) == 128 + number, rest
        left_nothing(place)

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
