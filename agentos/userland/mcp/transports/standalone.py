"""A kernel for as long as an MCP server runs, where none runs already.

An MCP client starts the server in a project's directory, which an agent may be able to write to. ``-P`` keeps Python
from importing modules from there.
"""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio
from attrs import frozen

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # for the kernel to listen
POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0  # between two looks at a kernel that isn't ours, and before one is started again
END_SECONDS = 30.0  # for the kernel to stop its agents
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
# Run in the child: SIGTERM when the thread ends that started it, which is the main thread, so when the server ends in
# any way. Where the server has ended already its pid isn't the parent's.
GUARDED = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, 15); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


class StartFailed(Exception):
    """No kernel could be started; the text says why."""


@frozen
class KernelOptions:
    """The kernel to start; ``file`` is its configuration, ``None`` for that of the current directory."""

    socket: str
    state_dir: Path
    file: Path | None = None


async def keep_kernel(
    options: KernelOptions, say: Callable[[str], None], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Start a kernel whenever none listens at the socket, until cancelled; then end the one that was started.

    It has started when a kernel listens. Raises :class:`StartFailed` if the first one doesn't. ``say`` is told of each.
    """
    is_first = True
    while True:
        if not is_listening(options.socket):
            process = start(options)
            try:
                if await _is_up(process, options.socket):
                    say(f"started a kernel (pid {process.pid}), with its state in {options.state_dir}")
                elif is_first and not is_listening(options.socket):  # as when two start one at the same time
                    raise StartFailed(f"the kernel ended with status {process.poll()}: see above")
                if is_first:
                    task_status.started()
                    is_first = False
                await _wait_end(process)
                log.error("the kernel ended with status %s: it is started again", process.poll())
            finally:
                process.terminate()  # nothing, where it has ended
                with trio.move_on_after(END_SECONDS, shield=True):
                    await _wait_end(process)
                if process.poll() is None:
                    process.kill()
                    process.wait()
        elif is_first:
            task_status.started()
            is_first = False
        await trio.sleep(LOOK_SECONDS)


def is_listening(path: str) -> bool:
    """Whether a kernel listens at this socket."""
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        return sock.connect_ex(path) == 0
    return False


def start(options: KernelOptions) -> "subprocess.Popen[bytes]":
    """Start a kernel that ends with this process; must be called in the main thread. It prints to our stderr."""
    file: Sequence[str] = [str(options.file)] if options.file is not None else []
    run = [sys.executable, "-P", "-m", "agentos", "run", *file]
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-c", GUARDED, str(os.getpid())),
            *(*run, "--socket", options.socket, "--state-dir", str(options.state_dir)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),  # stdout is the client's
        start_new_session=True,  # ^C in a terminal ends us, and we end the kernel in order
    )


async def _is_up(process: "subprocess.Popen[bytes]", path: str) -> bool:
    """Whether the kernel has come to listen before it ended."""
    with trio.move_on_after(START_SECONDS):
        while process.poll() is None:
            if is_listening(path):
                return True
            await trio.sleep(POLL_SECONDS)
    return False


async def _wait_end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    fd = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)
    process.wait()
