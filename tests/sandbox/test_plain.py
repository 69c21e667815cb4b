import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

import agentos_sdk
from agentos.sandbox.plain import Launch, Launcher, LaunchError, Program
from agentos.sandbox.status import Status

SDK = str(Path(agentos_sdk.__file__).parent.parent)


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    return Launcher()


def launch(*argv: str, **more: Any) -> Launch:
    given: dict[str, Any] = {"python": sys.executable, "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "sdk": SDK}
    return Launch(**{"kind": "command", "argv": argv, **given, **more})


async def over(program: Program) -> tuple[Status, str]:
    """How it ended, and what it wrote."""
    status = await program.wait()
    written = os.read(program.stdout, 65536).decode()
    os.close(program.stdout)
    os.close(program.stderr)
    return status, written


async def test_a_command_runs_and_its_status_comes_back(launcher: Launcher) -> None:
    program = await launcher.start(launch("sh", "-c", "echo $0; exit 3", "hello"))
    await program.started()

    assert await over(program) == (Status(3, None), "hello\n")


async def test_a_signal_comes_back(launcher: Launcher) -> None:
    program = await launcher.start(launch("sleep", "1000"))
    await program.started()
    program.signal(signal.SIGTERM)

    status, _ = await over(program)

    assert (status, str(status)) == (Status(None, 15), "killed by SIGTERM")


async def test_kill_is_not_interrupted_and_may_come_again(launcher: Launcher) -> None:
    program = await launcher.start(launch("sleep", "1000"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await program.kill()

    assert program.status == Status(None, 9)
    program.signal(signal.SIGTERM)  # to nobody
    assert await program.kill() == Status(None, 9)
    await over(program)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (launch("/no/such"), "/no/such: No such file or directory"),
        (launch("/etc/passwd"), "/etc/passwd: Permission denied"),
        (launch("/no/such.py", kind="script"), "/no/such.py: No such file or directory"),
    ],
)
async def test_what_cannot_be_run_is_said(launcher: Launcher, given: Launch, text: str) -> None:
    program = await launcher.start(given)

    with pytest.raises(LaunchError) as caught:
        await program.started()

    assert str(caught.value) == text
    await over(program)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"cwd": "/no/such"}, "/no/such: No such file or directory"),
        ({"python": "/no/python", "kind": "script"}, "/no/python: No such file or directory"),
        ({"env": {"A=B": "x"}}, "the program: illegal environment variable name"),
    ],
)
async def test_what_cannot_even_be_begun_is_said_too(launcher: Launcher, more: dict[str, Any], text: str) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(LaunchError, match=text):
        await launcher.start(launch("true", **more))

    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_launch_leaves_no_file_open(launcher: Launcher) -> None:
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        program = await launcher.start(launch("true"))
        await program.started()
        await over(program)

    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_start_that_is_cancelled_is_not_forgotten(launcher: Launcher) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        program = await launcher.start(launch("sleep", "1000"))

    assert await program.kill() == Status(None, 9)
    await over(program)


def holding(fd: int) -> subprocess.Popen[bytes]:
    """Another process that has a file of ours open."""
    return subprocess.Popen(["sleep", "1000"], pass_fds=(fd,))


async def test_a_wake_up_that_is_meant_for_another_file_ends_no_program(launcher: Launcher) -> None:
    """While a child between fork and exec has a closed file too, epoll goes on telling of it, by its number."""
    program = await launcher.start(launch("sleep", "1000"))
    await program.started()
    read, write = os.pipe()
    with holding(read) as holder:
        with trio.move_on_after(0.1):
            await trio.lowlevel.wait_readable(read)
        os.close(write)  # now the pipe has something to tell
        os.dup2(program.pidfd, read)  # and its number belongs to another file
        os.close(program.pidfd)
        program.pidfd = read

        with trio.move_on_after(0.3) as patience:
            await program.wait()

        holder.kill()
    assert patience.cancelled_caught
    assert program.status is None
    assert await program.kill() == Status(None, 9)
    await over(program)
