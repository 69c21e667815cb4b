"""Our side of the zygote: ask it for a process, watch that process walk its plan, hand out the handle.

The zygote is started before there is anything to hide from it, by the thread that lives as long as we do: what it makes
is bound to that thread's life. It only clones; each new process tells its own story over a socket of its own, so that
nobody waits for somebody else's mounts.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, frozen

from . import steps as s
from .evidence import Observed, observe
from .handle import Sandbox, has_ended, reap
from .inside import messages
from .inside.zygote import NAMESPACES
from .steps import Step

_CODE = str(Path(__file__).resolve().parents[2])  # where the package agentos lies
_START = (
    "import os, sys; sys.path.append(os.getcwd()); os.chdir('/'); "
    "from agentos.sandbox.inside.zygote import main; main()"
)
_PATIENCE = 10  # seconds, for what takes the zygote a few milliseconds
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid uid gid


class SandboxError(Exception):
    """No sandbox came of it, and nothing is left of the attempt."""


class StepFailed(SandboxError):
    """A step could not be done: which, the errno (0 where it was no system call), and the text."""

    def __init__(self, step: str, errno: int, text: str) -> None:
        super().__init__(f"{step}: {text}")
        self.step, self.errno, self.text = step, errno, text


class ZygoteDied(SandboxError):
    """The process that clones was lost with the request; there's another one by now. Worth another try."""


@frozen
class _Ends:
    """Both sides of what connects a new process with us."""

    control: socket.socket
    last_word: int
    stdout: int
    stderr: int
    theirs: tuple[int, ...]


@define
class Spawner:
    """Makes sandboxes. ``start`` it before Trio runs, ``close`` it when no sandbox is to come any more."""

    _zygote: "subprocess.Popen[bytes]"
    _channel: socket.socket
    _turn: trio.Lock
    _closed: bool = False

    @classmethod
    def start(cls) -> "Spawner":
        """A spawner with its zygote; called by the main thread."""
        return cls(*_start_zygote(), trio.Lock())

    def close(self) -> None:
        """End the zygote; the sandboxes live on."""
        self._closed = True
        self._end_zygote()

    @property
    def zygote(self) -> int:
        """The zygote's pid."""
        return self._zygote.pid

    async def spawn(
        self, plan: Sequence[Step], admit: Callable[[int], None] | None = None, cgroup: int | None = None
    ) -> Sandbox:
        """Walk the plan in a new process and run its program; return when that has been exec'ed.

        ``admit`` is called with the pid while the process waits, to put it into its cgroups; ``cgroup`` is a directory
        of cgroup v2 to be born in. :class:`StepFailed` where a step fails: then there is no process any more.
        """
        try:
            return await self._attempt(plan, admit, cgroup)
        except ZygoteDied:
            return await self._attempt(plan, admit, cgroup)

    async def _attempt(self, plan: Sequence[Step], admit: Callable[[int], None] | None, cgroup: int | None) -> Sandbox:
        with contextlib.ExitStack() as undo:
            async with self._turn:
                with trio.CancelScope(shield=True):  # a request without its answer would be answered to the next
                    ends = _connect(undo)
                    pid, pidfd, namespaces = await self._ask(plan, ends, cgroup)
            undo.callback(_close_all, pidfd, *namespaces.values())
            try:
                program, observed = await _accompany(ends.control, pid, namespaces, admit)
            except BaseException:
                await _end(pidfd)  # noqa: ASYNC102 - it shields itself
                raise
            undo.pop_all()
            ends.control.close()
            return Sandbox(pid, program, pidfd, ends.stdout, ends.stderr, namespaces, observed, ends.last_word)

    async def _ask(self, plan: Sequence[Step], ends: _Ends, cgroup: int | None) -> tuple[int, int, dict[str, int]]:
        """The new process's pid, a pidfd and its namespaces, all of which are the caller's to close."""
        try:
            if self._closed:
                raise SandboxError("the spawner is closed")
            with _as_file(s.encode(plan)) as file:
                fds = [file, *ends.theirs, *([] if cgroup is None else [cgroup])]
                answer, new = await self._exchange({"cgroup": cgroup is not None}, fds)
        finally:
            _close_all(*ends.theirs)
        if answer is None:
            self._end_zygote()  # first: it may hold their ends
            await _bury(ends.control)
            self._zygote, self._channel = _start_zygote()
            raise ZygoteDied("the zygote died")
        if "errno" in answer:
            for pidfd in new:  # it had been born, and was killed
                await _end(pidfd)
                os.close(pidfd)
            raise StepFailed(answer["step"], answer["errno"], answer["text"])
        if len(new) != 1 + len(NAMESPACES):
            _close_all(*new)
            await _bury(ends.control)
            raise SandboxError("too many files are open here to take those of one more sandbox")
        return answer["pid"], new[0], dict(zip(NAMESPACES, new[1:], strict=True))

    async def _exchange(
        self, request: dict[str, object], fds: Sequence[int]
    ) -> tuple[dict[str, Any] | None, list[int]]:
        """One request and its answer; ``None`` where there is nobody to answer."""
        try:
            with trio.fail_after(_PATIENCE):
                self._channel.sendmsg([json.dumps(request).encode()], [_rights(fds)])
                return await _receive(self._channel)
        except (OSError, trio.TooSlowError):
            return None, []

    def _end_zygote(self) -> None:
        self._channel.close()
        self._zygote.kill()
        self._zygote.wait()


def _start_zygote() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(its.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=_CODE,  # not an argument: programs can read those of their PID 1
            env={},
            start_new_session=True,
            pass_fds=(its.fileno(),),
        )
    ours.settimeout(_PATIENCE)
    try:
        ready = ours.recv(messages.MAX_MESSAGE)
    except TimeoutError:
        ready = b""
    if not ready:
        ours.close()
        process.kill()
        raise SandboxError(f"the zygote could not be started: exit status {process.wait()}")
    ours.setblocking(False)
    return process, ours


def _connect(undo: contextlib.ExitStack) -> _Ends:
    """Pipes and a socket for one process. Our ends are closed by ``undo``, theirs by whoever sends them."""
    control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    undo.callback(control.close)
    theirs = [its.detach()]
    try:
        control.setblocking(False)
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # each message comes with its sender's pid
        reads = []
        for _ in range(3):
            read, write = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, read)
            theirs.append(write)
            reads.append(read)
            os.set_blocking(read, False)
    except BaseException:
        _close_all(*theirs)
        raise
    last_word, stdout, stderr = reads
    return _Ends(control, last_word, stdout, stderr, tuple(theirs))


async def _accompany(
    control: socket.socket, pid: int, namespaces: dict[str, int], admit: Callable[[int], None] | None
) -> tuple[int, Observed]:
    """See a process through its plan, up to its exec; the program's pid, and what was seen of it."""
    await _hear(control, messages.BORN)
    if admit is not None:
        admit(pid)
    _go(control)
    said, program = await _hear(control, messages.CONFINED)
    inodes = {name: os.fstat(fd).st_ino for name, fd in namespaces.items()}
    observed = observe(program, {**inodes, **said["namespaces"]})
    _go(control)
    await _hear(control, None)
    return program, observed


def _go(control: socket.socket) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended; the next message is its end
        control.send(messages.GO.encode())


async def _hear(control: socket.socket, wanted: str | None) -> tuple[dict[str, Any], int]:
    """The next message, which must be ``wanted``, and its sender's pid; ``None`` is the end."""
    said, sender = await _receive_from(control)
    if said is not None and said["what"] == messages.FAILED:
        raise StepFailed(said["step"], said["errno"], said["text"])
    if (said and said["what"]) != wanted:
        raise SandboxError(f"the process ended before it was {wanted}" if said is None else f"unexpected: {said}")
    return said or {}, sender


async def _receive_from(control: socket.socket) -> tuple[dict[str, Any] | None, int]:
    while True:
        try:
            data, ancillary, _, _ = control.recvmsg(messages.MAX_MESSAGE, socket.CMSG_SPACE(_CREDENTIALS.size))
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(control)
        except ConnectionResetError:  # it ended without reading our last message
            return None, 0
    pids = [_CREDENTIALS.unpack(bytes(value))[0] for _, kind, value in ancillary if kind == socket.SCM_CREDENTIALS]
    return (json.loads(data) if data else None), (pids[0] if pids else 0)


async def _receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The zygote's answer and the descriptors with it; ``None`` where it has died."""
    space = socket.CMSG_SPACE((1 + len(NAMESPACES)) * 4)
    while True:
        try:
            data, ancillary, _, _ = channel.recvmsg(messages.MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(channel)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return (json.loads(data) if data else None), list(fds)


async def _end(pidfd: int) -> None:
    """Kill a child and wait for it, whoever cancels."""
    with trio.CancelScope(shield=True):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        while not has_ended(pidfd):
            await trio.lowlevel.wait_readable(pidfd)
        reap(pidfd)


async def _bury(control: socket.socket) -> None:
    """Wait for a child that the zygote may have made and not told of: it ends when nobody tells it to go."""
    control.shutdown(socket.SHUT_WR)
    pid, said = 0, None
    while (message := await _receive_from(control))[0] is not None:
        said, pid = message
    if said is not None:
        pidfd = os.pidfd_open(pid)
        try:
            await _end(pidfd)
        finally:
            os.close(pidfd)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[int]:
    """A descriptor to read this from: a plan with its environment is more than a packet holds."""
    fd = os.memfd_create("plan", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        yield fd
    finally:
        os.close(fd)


def _rights(fds: Sequence[int]) -> tuple[int, int, "array.array[int]"]:
    return (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))


def _close_all(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
