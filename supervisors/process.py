"""An operating system process as a child: in a group of its own, waited for by pidfd, and never left behind. Linux."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import trio
from attrs import field, frozen

from supervisors.exits import Ended


@frozen
class Died:
    """How a process ended that did not end well: its exit ``status``, or the ``signal`` that killed it."""

    status: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit status {self.status}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:  # a real-time signal between the two that have names
            return f"signal {self.signal}"


def _arguments(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not given:
        raise ValueError("argv is a program and its arguments, one string each")
    return tuple(given)


@frozen
class Process:
    """Runs ``argv``; its handshake says that exec worked, and its value is the process id.

    ``env`` and ``cwd``: None inherits ours. ``stdin``, ``stdout``, ``stderr``: file descriptors or what ``subprocess``
    takes instead. Asked to stop, its whole process group gets SIGTERM. However it ends, what is left of the group gets
    SIGKILL; who leaves the group (``setsid``) escapes that. Exit status 0 is ``normal``, death by the SIGTERM that
    was asked for ``shutdown``, everything else ``crash`` with a ``Died``.
    """

    argv: tuple[str, ...] = field(converter=_arguments)
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    stdin: int | None = subprocess.DEVNULL
    stdout: int | None = None
    stderr: int | None = None

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        # In a thread, because fork and exec may take long when this process is big or the disk slow. To cancel does
        # not abandon the thread: a process that has come into being is always ours to end.
        process, pidfd = await trio.to_thread.run_sync(self._spawn)
        try:
            task_status.started(process.pid)
            async with trio.open_nursery() as watch:
                watch.start_soon(_terminate_when, stop, process.pid)
                await trio.lowlevel.wait_readable(pidfd)
                watch.cancel_scope.cancel()
        finally:
            # Before it is reaped: as long as the leader is a zombie, no other group can have its number.
            _signal_group(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(pidfd)
            os.close(pidfd)
            status = process.wait()  # does not block: the pidfd was readable
        _report(status, asked=stop.is_set())

    def _spawn(self) -> "tuple[subprocess.Popen[bytes], int]":
        """The process and its pidfd. Raises OSError; then there is no process."""
        process = subprocess.Popen(
            self.argv,
            env=self.env,
            cwd=self.cwd,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            start_new_session=True,
        )
        try:
            return process, os.pidfd_open(process.pid)
        except OSError:  # out of descriptors: without a pidfd nobody would wait for it
            process.kill()
            process.wait()
            raise


async def _terminate_when(stop: trio.Event, group: int) -> None:
    await stop.wait()
    _signal_group(group, signal.SIGTERM)
    await trio.sleep_forever()


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody left in it
        os.killpg(group, number)


def _report(status: int, *, asked: bool) -> None:
    """``status`` as subprocess has it: negative for a signal. Raises Ended unless it was 0."""
    if status == -signal.SIGTERM and asked:
        raise Ended("shutdown")
    if status < 0:
        raise Ended("crash", Died(signal=-status))
    if status > 0:
        raise Ended("crash", Died(status=status))
