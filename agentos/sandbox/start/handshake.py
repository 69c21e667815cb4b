"""Messages between the kernel and a new process until it is exec'ed, and how a failed process is killed and reaped.

The messages are those of :mod:`agentos.sandbox.inside.messages`. Each comes with the sender's pid, as numbered in our
PID namespace.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import termios
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio
from attrs import Factory, evolve, frozen

from agentos.sandbox.errors import ProcessEnded, SandboxError, StepFailed
from agentos.sandbox.inside import messages
from agentos.sandbox.sandbox import has_ended, reap
from agentos.sandbox.steps import Execute, Step

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid uid gid
_MAX_FDS = 8  # per message


@frozen
class NewProcess:
    """A new process that waits: its pid, a pidfd, our control socket, and the namespaces it was cloned in."""

    pid: int
    pidfd: int
    control: socket.socket
    namespaces: Mapping[str, int] = Factory(dict)


@frozen
class ProcessPipes:
    """Both ends of the pipes of a new process."""

    status: int
    stdout: int
    stderr: int
    child_ends: Mapping[str, int]


@frozen
class _Message:
    """One message. ``fields`` is ``None`` at end of file. The receiver closes ``fds``."""

    fields: dict[str, Any] | None
    sender: int = 0
    fds: tuple[int, ...] = ()


def open_control_socket() -> tuple[socket.socket, socket.socket]:
    """Return the control socket of a process to be cloned: our end and its end."""
    control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # each message comes with the sender's pid
    return control, child_end


def open_pipes(undo: contextlib.ExitStack, last: Step | None = None) -> ProcessPipes:
    """Open the pipes of one process. ``undo`` closes our ends; the caller that sends the other ends closes those.

    If the plan's ``last`` step has a terminal, standard output and error are one new pseudoterminal: our end of it is
    ``stdout``, and nothing comes from ``stderr``. If the step is ``two_way``, our ``stdout`` is also written to.
    """
    child_ends: dict[str, int] = {}
    parent_ends = []
    terminal = last.terminal if isinstance(last, Execute) else None
    two_way = isinstance(last, Execute) and last.two_way
    try:
        for name in ("status", "stdout", "stderr"):
            is_master = terminal is not None and name == "stdout"
            if two_way and name == "stdout":
                read, child_ends[name] = (end.detach() for end in socket.socketpair())
            else:
                read, child_ends[name] = os.openpty() if is_master else os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, read)
            parent_ends.append(read)
            os.set_blocking(read, False)
        if terminal is not None:
            os.close(child_ends.pop("stderr"))
            child_ends["stderr"] = os.dup(child_ends["stdout"])
            termios.tcsetwinsize(child_ends["stdout"], terminal)
    except BaseException:
        close_all(*child_ends.values())
        raise
    status, stdout, stderr = parent_ends
    return ProcessPipes(status, stdout, stderr, child_ends)


def send_descriptors(control: socket.socket, fds_by_name: Mapping[str, int]) -> None:
    """Send a waiting process the descriptors for its plan; ``OSError`` if they can't be sent."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # as in send_go()
        socket.send_fds(control, [os.fsencode("\0".join(fds_by_name))], [*fds_by_name.values()])


async def receive_descendant(undo: contextlib.ExitStack, control: socket.socket, joiner: int) -> NewProcess:
    """Return the process that continues in the joiner's place; it waits for go. ``undo`` closes its namespaces."""
    message = await _expect(control, messages.BELOW)
    undo.callback(close_all, *message.fds)
    namespaces = _name_descriptors(message)
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(message.sender) == joiner:  # otherwise it has ended and its pid is reused
            return NewProcess(message.sender, os.pidfd_open(message.sender), control, namespaces)
    raise SandboxError("the process ended as soon as it was in the sandbox")


async def open_namespaces(undo: contextlib.ExitStack, process: NewProcess) -> NewProcess:
    """Return the process with the namespaces that it was cloned in; it sends others itself.

    Must be done while it waits: later it isn't dumpable, and without root open is denied.
    """
    found = {}
    try:
        for name in ("user", "pid", "net", "uts", "ipc", "mnt"):
            found[name] = os.open(f"/proc/{process.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, found[name])
    except FileNotFoundError:  # it has ended, and may have said why
        await wait_confined(process.control)  # noqa: ASYNC120 - a cancelled task needs no reason
        raise
    return evolve(process, namespaces=found)


async def wait_confined(control: socket.socket) -> tuple[int, dict[str, int]]:
    """Return the pid of the program, which is confined and waits, and the descriptors that it sent.

    If it enters a sandbox, the pid is that of its PID 1, which starts it later. The descriptors are namespaces by name,
    tmpfs mounts by path, and sockets in the plan's order, with names that begin with :data:`.messages.SOCKET_PREFIX`.
    """
    found: dict[str, int] = {}
    try:
        while True:
            message = await _expect(control, messages.LISTENING, messages.FOUND, messages.CONFINED)
            if message.fields is not None and message.fields["what"] == messages.CONFINED:
                return message.sender, found
            found |= _take_descriptors(message)
    except BaseException:
        close_all(*found.values())
        raise


def _take_descriptors(message: _Message) -> dict[str, int]:
    """As :func:`_name_descriptors`; closes those that came if some are missing."""
    try:
        return _name_descriptors(message)
    except SandboxError:
        close_all(*message.fds)
        raise


def _name_descriptors(message: _Message) -> dict[str, int]:
    """The descriptors of a message by name; ``SandboxError`` if some are missing."""
    names = message.fields["fds"] if message.fields is not None else ()
    if len(message.fds) != len(names):
        raise SandboxError("too many open files: the kernel can't take the descriptors of another sandbox")
    return dict(zip(names, message.fds, strict=True))


async def receive_sockets(control: socket.socket, count: int) -> Sequence[socket.socket]:
    """Receive the sockets that a process in the sandbox bound."""
    found: dict[str, int] = {}
    try:
        while len(found) < count:
            found |= _take_descriptors(await _expect(control, messages.LISTENING))
    except BaseException:
        close_all(*found.values())
        raise
    return wrap_sockets(found.values())


def wrap_sockets(fds: Iterable[int]) -> Sequence[socket.socket]:
    """Return socket objects for these descriptors."""
    sockets = [socket.socket(fileno=fd) for fd in fds]
    for one in sockets:
        one.setblocking(False)  # sets the object's own flag; the descriptor is non-blocking already
    return sockets


async def wait_exec(control: socket.socket) -> None:
    """Let the program go, and return when it has been exec'ed."""
    send_go(control)
    await _expect(control, None)


def send_go(control: socket.socket) -> None:
    """Send go to a waiting process."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; the next message is end of file
        control.send(messages.GO.encode())


async def kill_and_reap(pidfd: int) -> None:
    """Kill a child and wait for it; shielded from cancellation."""
    with trio.CancelScope(shield=True):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        while not has_ended(pidfd):
            await trio.lowlevel.wait_readable(pidfd)
        reap(pidfd)


async def kill_and_reap_group(leader: int, pidfd: int) -> None:
    """As :func:`kill_and_reap`, also for the children in its process group, even if their pids were never reported."""
    with trio.CancelScope(shield=True):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # first, so that it makes no more children
        with contextlib.suppress(ProcessLookupError):  # it had no process group of its own yet
            os.killpg(leader, signal.SIGKILL)
        while not has_ended(pidfd):
            await trio.lowlevel.wait_readable(pidfd)
        if not _reap_group(leader, os.WNOHANG):
            await trio.to_thread.run_sync(_reap_group, leader)
        with contextlib.suppress(ChildProcessError):  # it was in its own group and is reaped
            reap(pidfd)


def _reap_group(leader: int, options: int = 0) -> bool:
    """Reap our children in a process group; false if, with WNOHANG, some of them have yet to end."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PGID, leader, os.WEXITED | options) is not None:
            pass
        return False
    return True


async def reap_unreported(control: socket.socket) -> None:
    """Wait for a child that was cloned but not reported: closing our end makes it exit. Shielded from cancellation."""
    control.shutdown(socket.SHUT_WR)
    pid = 0
    with trio.CancelScope(shield=True):
        while (message := await _receive(control)).fields is not None:
            close_all(*message.fds)
            if message.fields["what"] == messages.BORN:  # others may come from a child of it
                pid = message.sender
        if pid:
            pidfd = os.pidfd_open(pid)
            try:
                await kill_and_reap(pidfd)
            finally:
                os.close(pidfd)


async def _expect(control: socket.socket, *expected: str | None) -> _Message:
    """Receive the next message after BORN; it must be one of ``wanted``. ``None`` is end of file."""
    while (message := await _receive(control)).fields is not None and message.fields["what"] == messages.BORN:
        pass  # the zygote's answer has already reported it; this is for a zygote that died before it answered
    fields = message.fields
    if (fields and fields["what"]) in expected:
        return message
    close_all(*message.fds)
    if fields is None:
        raise ProcessEnded(f"the process ended before it was {expected[-1]}")
    if fields["what"] == messages.FAILED:
        raise StepFailed(fields["step"], fields["errno"], fields["text"])
    raise SandboxError(f"unexpected message from a new process: {fields}")


async def _receive(control: socket.socket) -> _Message:
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_MAX_FDS * 4)
    while True:
        try:
            data, ancillary, _, _ = control.recvmsg(messages.MAX_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(control)
        except ConnectionResetError:  # it ended without reading our last message
            return _Message(None)
    sender, fds = 0, array.array("i")
    for _, kind, value in ancillary:
        if kind == socket.SCM_CREDENTIALS:
            sender = _CREDENTIALS.unpack(bytes(value))[0]
        else:
            fds.frombytes(value)
    try:
        fields = dict(json.loads(data)) if data else None  # end of file
    except ValueError:
        fields = {"what": repr(data[:100])}
    return _Message(fields, sender, tuple(fds))


def close_all(*fds: int) -> None:
    """Close each of these descriptors."""
    for fd in fds:
        os.close(fd)
