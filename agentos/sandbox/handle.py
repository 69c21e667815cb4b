"""One running sandbox, from outside: its PID 1 by pidfd, its namespaces, its output, and how it ended."""

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping

import trio
from attrs import Factory, define

from .errors import SandboxError
from .evidence import Observed
from .inside import keeper
from .inside.shim import CONTINUE_ALL, STOP_ALL
from .status import Status

PATIENCE = keeper.PATIENCE + 1.0  # seconds that a keeper has to end all that it keeps


@define(eq=False)
class Sandbox:
    """A program behind its walls. ``stdout`` and ``stderr`` are pipes to read, not blocking; whoever reads closes them.
    So does whoever accepts on ``listener``, which has been there since before the program began.

    ``pid`` is its PID 1 and ``program`` the program itself, as the host numbers them. They are one where there are no
    walls: then its process group is all that can be reached of it, and that ends with the program. But where it is
    ``kept``, ``pid`` is that of its keeper, and :meth:`kill` ends all that the program has started.
    """

    pid: int
    program: int
    pidfd: int
    stdout: int
    stderr: int
    namespaces: Mapping[str, int]  # by name, descriptors to join them; closed at the end
    observed: Observed
    _last_word: int  # a pipe: the program's wait status, written by PID 1
    _reaped: Callable[[int], None]
    status: Status | None = None
    tmpfs: Mapping[str, int] = Factory(dict)  # descriptors of those that are to be counted, by place; closed at the end
    listener: socket.socket | None = None  # on its own loopback, where its policy names a port
    frozen: bool = False  # also for whoever freezes its cgroup to set: nobody gets in meanwhile
    kept: bool = False
    _beside: "list[Sandbox]" = Factory(list)  # what has entered it
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
        if self.status is not None:
            return
        if self._bare:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        else:
            signal.pidfd_send_signal(self.pidfd, number)

    def freeze(self) -> None:
        """Stop all that is inside, but for PID 1."""
        self.frozen = True
        self.signal(signal.SIGSTOP if self._bare else STOP_ALL)
        for other in self._beside:  # our PID 1 may not be allowed to reach them
            other.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self.frozen = False
        self.signal(signal.SIGCONT if self._bare else CONTINUE_ALL)
        for other in self._beside:
            other.thaw()

    async def kill(self) -> Status:
        """End all that is inside and wait for it; not interrupted by cancellation."""
        with trio.CancelScope(shield=True):
            if self.kept:
                await self._dismiss()
            self.signal(signal.SIGKILL)
            await self.wait()
        assert self.status is not None
        return self.status

    async def _dismiss(self) -> None:
        """Have the keeper end all that it keeps; they can stop it, but then we do its work."""
        self.signal(keeper.END)
        self.signal(signal.SIGCONT)
        with trio.move_on_after(PATIENCE):
            await self.wait()
        if self.status is None:
            await trio.to_thread.run_sync(keeper.end_below, self.pid)

    def to_enter(self) -> dict[str, int]:
        """The namespaces that a further program has to join, by name; closing them stays our affair.

        :class:`SandboxError` where there is nothing to enter.
        """
        namespaces = self._own_namespaces()
        if self.frozen:
            raise SandboxError("the sandbox is frozen")
        if missing := {"user", "pid", "mnt"} - namespaces.keys():
            raise SandboxError(f"no sandbox to enter: the host's own namespaces {', '.join(sorted(missing))}")
        return namespaces

    def to_listen_in(self) -> dict[str, int]:
        """The namespaces that whoever is to listen on its loopback has to join; otherwise as :meth:`to_enter`."""
        namespaces = self._own_namespaces()
        if "net" not in namespaces:
            raise SandboxError("it has the host's network: there is no 127.0.0.1 of its own to listen on")
        return {name: namespaces[name] for name in ("user", "net") if name in namespaces}

    def accompany(self, other: "Sandbox") -> None:
        """Take note of one that has entered us.

        It is waited for by us too: our PID 1 can't end before all that is in its PID namespace was waited for, and this
        one isn't its child.
        """
        self._beside = [*(one for one in self._beside if one.status is None), other]
        trio.lowlevel.spawn_system_task(other.wait)
        if self.frozen:
            other.freeze()

    def _own_namespaces(self) -> dict[str, int]:
        if self.status is not None or has_ended(self.pidfd):
            raise SandboxError("the sandbox has ended")
        return {
            name: fd
            for name, fd in self.namespaces.items()
            if os.fstat(fd).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino
        }

    @property
    def _bare(self) -> bool:
        return self.program == self.pid

    def _reap(self) -> None:
        if self._bare:  # the rest of its group, while the zombie still keeps the group's number ours
            with contextlib.suppress(PermissionError):  # all of them have become somebody else
                self.signal(signal.SIGKILL)
        how = reap(self.pidfd)
        self._reaped(self.pid)
        word = b""
        with contextlib.suppress(BlockingIOError):  # the zygote hasn't closed its copy of the other end yet
            word = os.read(self._last_word, 4)  # it has ended: what isn't there now never comes
        if len(word) == 4:  # otherwise there was no PID 1, or it was killed itself, and everything with it
            (wait_status,) = struct.unpack("=i", word)
            code = os.waitstatus_to_exitcode(wait_status)
            how = Status(code, None) if code >= 0 else Status(None, -code)
        self.status = how
        for fd in (self.pidfd, self._last_word, *self.namespaces.values(), *self.tmpfs.values()):
            os.close(fd)


def has_ended(pidfd: int) -> bool:
    """A look, since a wake-up may be meant for a file that had this number before."""
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pidfd: int) -> Status:
    """Wait for an ended child; how PID 1 ended."""
    found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    assert found is not None, "a child that is waited for without WNOHANG is found"
    return Status(found.si_status, None) if found.si_code == os.CLD_EXITED else Status(None, found.si_status)
