"""Handle of one running sandbox: pidfd of its PID 1, namespaces, output pipes, signals, exit status."""

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

import trio
from attrs import Factory, define
from msgspec import Struct

from agentos.threads import Limiter

from .errors import SandboxError
from .inside import keeper
from .inside.programs.shim import CONTINUE_ALL, STOP_ALL
from .report.walls import Observed
from .status import Status

KEEPER_TIMEOUT = keeper.KILL_TIMEOUT + 1.0  # seconds that a keeper gets to kill all processes below it


class Rusage(Struct, frozen=True):
    """What an ended sandbox used, by wait4: CPU seconds of all its processes, and the peak of the largest, in bytes.

    Without the programs that entered it. The peak includes the process's own start, as a copy of the zygote.
    """

    cpu_seconds: float
    peak: int


@define(eq=False)
class Sandbox:
    """A running sandboxed program. ``stdout`` and ``stderr`` are non-blocking pipes; their reader closes them.
    The user of ``sockets`` closes those, which are in the order of the policy's; they have been open since before the
    program started.

    ``pid`` is the sandbox's PID 1 and ``program`` the process that was inspected, both as host pids: the program
    itself, or PID 1 if the program entered the sandbox of another one. If ``no_shim`` is set, ``pid`` is the program:
    then only its process group can be signalled, and it ends with the program. If ``has_keeper`` is set, ``pid`` is the
    program's keeper, and :meth:`kill` ends all processes that the program has started.
    """

    pid: int
    program: int
    pidfd: int
    stdout: int
    stderr: int
    namespaces: Mapping[str, int]  # name to descriptor for setns(2); closed at the end
    observed: Observed
    _status_fd: int  # a pipe: the program's wait status, written by PID 1
    _on_reaped: Callable[[int, Sequence[int]], None]  # with its pid, and the descriptors to be closed
    status: Status | None = None
    rusage: Rusage | None = None  # once it has ended
    tmpfs: Mapping[str, int] = Factory(dict)  # mount point to descriptor, for mounts to be counted; closed at the end
    sockets: Sequence[socket.socket] = ()  # in its own network
    frozen: bool = False  # also set by code that freezes its cgroup: no process can enter meanwhile
    no_shim: bool = False
    has_keeper: bool = False
    _entered: "list[Sandbox]" = Factory(list)  # programs that entered it
    _wait_lock: Limiter = Factory(lambda: Limiter(1))

    async def wait(self) -> Status:
        """Wait until all its processes have ended; its output may still be unread."""
        async with self._wait_lock:
            while self.status is None:
                await trio.lowlevel.wait_readable(self.pidfd)
                if has_ended(self.pidfd):
                    self._reap()
        return self.status

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group; SIGKILL reaches all processes. No effect after it has ended."""
        if self.status is not None:
            return
        if self.no_shim:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        else:
            signal.pidfd_send_signal(self.pidfd, number)

    def freeze(self) -> None:
        """Stop all processes inside, except PID 1."""
        self.frozen = True
        self.signal(signal.SIGSTOP if self.no_shim else STOP_ALL)
        for other in self._entered:  # our PID 1 may not be permitted to signal them
            other.freeze()

    def thaw(self) -> None:
        """Continue all processes inside."""
        self.frozen = False
        self.signal(signal.SIGCONT if self.no_shim else CONTINUE_ALL)
        for other in self._entered:
            other.thaw()

    def list_roots(self) -> list[int]:
        """The pids of its PID 1 and of the programs that entered it and haven't ended."""
        return [self.pid, *(other.pid for other in self._entered if other.status is None)]

    async def kill(self) -> Status:
        """Kill all processes inside and wait for them; shielded from cancellation."""
        with trio.CancelScope(shield=True):
            if self.has_keeper:
                await self._stop_keeper()
            self.signal(signal.SIGKILL)
            await self.wait()
        assert self.status is not None
        return self.status

    async def _stop_keeper(self) -> None:
        """Make the keeper kill all its processes; if they have stopped it, kill them from here."""
        self.signal(keeper.KILL_DESCENDANTS)
        self.signal(signal.SIGCONT)
        with trio.move_on_after(KEEPER_TIMEOUT):
            await self.wait()
        if self.status is None:
            await trio.to_thread.run_sync(keeper.kill_descendants_until_gone, self.pid)

    def namespaces_to_enter(self) -> dict[str, int]:
        """Return the namespaces that a further program has to join, by name. The sandbox still owns the descriptors.

        :class:`SandboxError` if the sandbox has ended, is frozen, or has no namespaces of its own.
        """
        namespaces = self._own_namespaces()
        if self.frozen:
            raise SandboxError("the sandbox is frozen")
        if missing := {"user", "pid", "mnt"} - namespaces.keys():
            raise SandboxError(f"no sandbox to enter: the host's own namespaces {', '.join(sorted(missing))}")
        return namespaces

    def namespaces_to_listen(self) -> dict[str, int]:
        """Return the namespaces to join to listen on the sandbox's loopback; as :meth:`namespaces_to_enter`."""
        namespaces = self._own_namespaces()
        if "net" not in namespaces:
            raise SandboxError("it has the host's network: there is no 127.0.0.1 of its own to listen on")
        return {name: namespaces[name] for name in ("user", "net") if name in namespaces}

    def register_entered(self, other: "Sandbox") -> None:
        """Register a program that has entered this sandbox.

        A task waits for it too: our PID 1 can't end before every process in its PID namespace is reaped, and this one
        isn't its child.
        """
        self._entered = [*(one for one in self._entered if one.status is None), other]
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

    def _reap(self) -> None:
        if self.no_shim:  # kill the rest of its group while the zombie keeps the group id from being reused
            with contextlib.suppress(PermissionError):  # all of them have changed their uid
                self.signal(signal.SIGKILL)
        _, wait_status, used = os.wait4(self.pid, 0)
        self.rusage = Rusage(used.ru_utime + used.ru_stime, used.ru_maxrss << 10)
        code = os.waitstatus_to_exitcode(wait_status)
        data = b""
        with contextlib.suppress(BlockingIOError):  # the zygote hasn't closed its copy of the other end yet
            data = os.read(self._status_fd, 4)  # it has ended: no more data can come
        if len(data) == 4:  # otherwise there was no PID 1, or PID 1 was killed with all the others
            (wait_status,) = struct.unpack("=i", data)
            code = os.waitstatus_to_exitcode(wait_status)
        self.status = Status(code, None) if code >= 0 else Status(None, -code)
        os.close(self.pidfd)
        os.close(self._status_fd)
        self._on_reaped(self.pid, (*self.namespaces.values(), *self.tmpfs.values()))


def has_ended(pidfd: int) -> bool:
    """Whether it has ended. Needed after a wake-up, which may be for a file that had this fd before."""
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pidfd: int) -> Status:
    """Reap an ended child; returns its exit status."""
    found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    assert found is not None, "a child that is waited for without WNOHANG is found"
    return Status(found.si_status, None) if found.si_code == os.CLD_EXITED else Status(None, found.si_status)
