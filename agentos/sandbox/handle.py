"""One running sandbox, from outside: its PID 1 by pidfd, its namespaces, its output, and how it ended."""

import os
import signal
import struct
from collections.abc import Mapping

import trio
from attrs import Factory, define

from .evidence import Observed
from .inside.shim import CONTINUE_ALL, STOP_ALL
from .status import Status


@define(eq=False)
class Sandbox:
    """A program behind its walls. ``stdout`` and ``stderr`` are pipes to read, not blocking; whoever reads closes them.

    ``pid`` is its PID 1 and ``program`` the program itself, as the host numbers them.
    """

    pid: int
    program: int
    pidfd: int
    stdout: int
    stderr: int
    namespaces: Mapping[str, int]  # by name, descriptors to join them; closed at the end
    observed: Observed
    _last_word: int  # a pipe: the program's wait status, written by PID 1
    status: Status | None = None
    _waiting: trio.Lock = Factory(trio.Lock)

    async def wait(self) -> Status:
        """Return when nothing is left of it but its output."""
        async with self._waiting:
            while self.status is None:
                await trio.lowlevel.wait_readable(self.pidfd)
                if has_ended(self.pidfd):
                    self._reap()
        assert self.status is not None
        return self.status

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group; SIGKILL to all that is inside. Nothing where it has ended."""
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def freeze(self) -> None:
        """Stop all that is inside, but for PID 1."""
        self.signal(STOP_ALL)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(CONTINUE_ALL)

    async def kill(self) -> Status:
        """End all that is inside and wait for it; not interrupted by cancellation."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGKILL)
            await self.wait()
        assert self.status is not None
        return self.status

    def _reap(self) -> None:
        how = reap(self.pidfd)
        word = os.read(self._last_word, 4)  # it has ended: what isn't there now never comes
        if len(word) == 4:  # otherwise PID 1 itself was killed, and everything with it
            (wait_status,) = struct.unpack("=i", word)
            code = os.waitstatus_to_exitcode(wait_status)
            how = Status(code, None) if code >= 0 else Status(None, -code)
        self.status = how
        for fd in (self.pidfd, self._last_word, *self.namespaces.values()):
            os.close(fd)


def has_ended(pidfd: int) -> bool:
    """A look, since a wake-up may be meant for a file that had this number before."""
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pidfd: int) -> Status:
    """Wait for an ended child; how PID 1 ended."""
    found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    assert found is not None, "a child that is waited for without WNOHANG is found"
    return Status(found.si_status, None) if found.si_code == os.CLD_EXITED else Status(None, found.si_status)
