"""An OS process as a child: in its own process group, waited for by pidfd, never left behind. Linux only."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import trio
from attrs import field, frozen
from msgspec import Struct

from supervisors.exits import Ended


class Died(Struct, frozen=True):
    """The abnormal end of a process: its exit ``status``, or the ``signal`` that killed it."""

    status: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit status {self.status}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:  # a real-time signal without a name
            return f"signal {self.signal}"


def _arguments(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not given:
        raise ValueError("argv is a program and its arguments, one string each")
    return tuple(given)


@frozen
class Process:
    """Runs ``argv``. Its handshake means that exec worked; the value is the process id.

    ``env`` and ``cwd``: None inherits ours. ``stdin``, ``stdout``, ``stderr``: file descriptors or the other values
    that ``subprocess`` takes. When asked to stop its whole process group gets SIGTERM and SIGCONT. However it ends, the
    rest of the group gets SIGKILL; a process that leaves the group (``setsid``) escapes that. Exit status 0 is
    ``normal``, death by
    the SIGTERM that was asked for ``shutdown``, everything else ``crash`` with a ``Died``.
    """

    argv: tuple[str, ...] = field(converter=_arguments)
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    stdin: int | None = subprocess.DEVNULL
    stdout: int | None = None
    stderr: int | None = None

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        # In a thread, because fork and exec may take long if this process is big or the disk slow. Cancelling does not
        # abandon the thread, so that a process once created is always ended by us.
        process, pidfd = await trio.to_thread.run_sync(self._spawn)
        try:
            task_status.started(process.pid)
            async with trio.open_nursery() as watch:
                watch.start_soon(_terminate_when, stop, process.pid)
                await trio.lowlevel.wait_readable(pidfd)
                watch.cancel_scope.cancel()
        finally:
            # Before it is reaped: while the leader is a zombie its group number can't be reused.
            _signal_group(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(pidfd)
            os.close(pidfd)
            status = process.wait()  # does not block: the pidfd was readable
        _report(status, asked=stop.is_set())

    def _spawn(self) -> "tuple[subprocess.Popen[bytes], int]":
        """The process and its pidfd. Raises OSError; then no process is left."""
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
        except OSError:  # out of descriptors: without a pidfd the process would not be waited for
            process.kill()
            process.wait()
            raise


async def _terminate_when(stop: trio.Event, group: int) -> None:
    await stop.wait()
    _signal_group(group, signal.SIGTERM)
    _signal_group(group, signal.SIGCONT)  # a stopped process receives it only then
    await trio.sleep_forever()


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group is empty
        os.killpg(group, number)


def _report(status: int, *, asked: bool) -> None:
    """Raise Ended unless ``status`` is 0. It is negative for a signal, as in subprocess."""
    if status == -signal.SIGTERM and asked:
        raise Ended("shutdown")
    if status < 0:
        raise Ended("crash", Died(signal=-status))
    if status > 0:
        raise Ended("crash", Died(status=status))
