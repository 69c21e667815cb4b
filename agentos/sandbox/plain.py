"""A program without isolation, and which says so: a child process in a session of its own.

The parent-death signal follows the thread that forked, not the process, so that every program is started by one thread
that lives as long as we do. That thread is also the only one that reaps what programs leave behind: it knows which
children are ours to wait for.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import trio
from attrs import define, frozen

import agentos_sdk.start

from .status import Status

T = TypeVar("T")

START = agentos_sdk.start.__file__
REASON = "this version has no sandbox"
LAYERS = (
    *("user_ns", "pid_ns", "mount_ns", "net_ns", "ipc_ns", "uts_ns", "cgroup_ns", "root", "own_uid", "capabilities"),
    *("no_new_privs", "seccomp", "landlock", "rlimits", "memory", "pids", "cpu", "disk"),
)


class LaunchError(Exception):
    """The program could not be started; the text says which and why."""


@frozen
class Launch:
    """What to run: ``python PATH ARGS`` for a script, an argv for a command. ``sdk`` is put on a script's path."""

    kind: str  # script or command
    argv: Sequence[str]
    python: str
    env: Mapping[str, str]
    cwd: str
    sdk: str


@define(eq=False)
class Program:
    """A running program: its pid, a pidfd, and the pipes that it writes to."""

    pid: int
    pidfd: int
    stdout: int
    stderr: int
    executed: int  # readable when the program has been exec'ed: at its end, or with a text that says why not
    _reaped: Callable[[int], None]
    status: Status | None = None

    async def started(self) -> None:
        """Return when the program itself runs; :class:`LaunchError` when it can't."""
        problem: bytes | None = None
        try:
            while problem is None:
                await trio.lowlevel.wait_readable(self.executed)
                with contextlib.suppress(BlockingIOError):
                    problem = os.read(self.executed, 4096)
        finally:
            os.close(self.executed)
        if problem:
            raise LaunchError(problem.decode("utf-8", "replace"))

    def signal(self, number: int) -> None:
        """Send a signal to the program and all of its process group; nothing happens once it has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def wait(self) -> Status:
        """Return when the program has ended, and with it its process group."""
        while (status := self.status) is None:
            await trio.lowlevel.wait_readable(self.pidfd)
            if self.status is None and self._has_ended():
                self._reap()
        return status

    async def kill(self) -> Status:
        """SIGKILL it with its process group and reap it; not interrupted by cancellation."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGKILL)
            await self.wait()
        assert self.status is not None
        return self.status

    def _has_ended(self) -> bool:
        """A look, since a wake-up may be meant for a file that had this number before.

        Such a file lives on in a child between fork and exec, and so does what epoll has to tell of it.
        """
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _reap(self) -> None:
        self.signal(signal.SIGKILL)  # the rest of its group, while the zombie still keeps the group's number ours
        found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        assert found is not None, "a readable pidfd has something to wait for"
        exited = found.si_code == os.CLD_EXITED
        self.status = Status(found.si_status, None) if exited else Status(None, found.si_status)
        os.close(self.pidfd)
        self._reaped(self.pid)


class Launcher:
    """The one thread that starts programs, for as long as the process lives."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ours: set[int] = set()
        threading.Thread(target=self._serve, name="launcher", daemon=True).start()

    async def start(self, launch: Launch) -> Program:
        """Start a program; it is a child of ours, dies with us, and is running :mod:`agentos_sdk.start` so far."""
        return await self._in_thread(lambda: self._launch(launch))

    async def reap(self) -> bool:
        """Wait for the ended processes that programs left to us (we are their subreaper), or they'd stay zombies.

        False where one of our own hides others, until it is reaped itself: then ask again.
        """
        return await self._in_thread(self._reap_strangers)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        outcome: list[T | BaseException] = []

        def do() -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: ASYNC103 - this runs in the thread, and is raised where it was asked for
                outcome.append(error)
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self._work.put(do)
        with trio.CancelScope(shield=True):  # a program that was started must not be forgotten
            await done.wait()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _serve(self) -> None:
        while True:
            self._work.get()()

    def _launch(self, launch: Launch) -> Program:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        # A command needs no more of Python than the lines of start.py; a script runs as its interpreter would run it.
        interpreter = [sys.executable, "-I", "-S"] if launch.kind == "command" else [launch.python]
        argv = [*interpreter, START, str(write), str(os.getpid()), launch.sdk, launch.kind, *launch.argv]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(launch.env),
                cwd=launch.cwd,
                start_new_session=True,
                pass_fds=(write,),
            )
        except (OSError, ValueError) as error:
            os.close(read)
            what = error.filename or argv[0] if isinstance(error, OSError) else "the program"
            raise LaunchError(f"{what}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            os.close(write)
        self._ours.add(process.pid)
        process.returncode = 0  # it is ours to wait for, by pidfd; Popen's finalizer has nothing to do
        assert process.stdout is not None
        assert process.stderr is not None
        stdout, stderr = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        return Program(process.pid, os.pidfd_open(process.pid), stdout, stderr, read, self._ours.discard)

    def _reap_strangers(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in self._ours:
                    return False  # its pidfd is readable: it is about to be reaped
                os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        return True
