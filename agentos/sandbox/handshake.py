"""What a new process and we say to each other until it is the program, and how it is got rid of where it isn't.

The messages are those of :mod:`agentos.sandbox.inside.messages`. Each comes with its sender's pid, as we number it.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping
from typing import Any

import trio
from attrs import Factory, frozen

from .errors import SandboxError, StepFailed
from .handle import has_ended, reap
from .inside import messages

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid uid gid
_MAX_FDS = 8  # with one message


@frozen
class Born:
    """A new process, which waits: its pid, a pidfd, what connects us, and the namespaces that it was born in."""

    pid: int
    pidfd: int
    control: socket.socket
    namespaces: Mapping[str, int] = Factory(dict)


@frozen
class Ends:
    """Both sides of the pipes of a new process."""

    last_word: int
    stdout: int
    stderr: int
    theirs: Mapping[str, int]


@frozen
class _Said:
    """One message; ``None`` for what was said is the end. Its descriptors are the hearer's to close."""

    fields: dict[str, Any] | None
    sender: int = 0
    fds: tuple[int, ...] = ()


def connect() -> tuple[socket.socket, socket.socket]:
    """The control socket of a process that is to be born: our end and its."""
    control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # each message comes with its sender's pid
    return control, its


def pipes(undo: contextlib.ExitStack) -> Ends:
    """Pipes for one process. Our ends are closed by ``undo``, theirs by whoever sends them."""
    theirs: dict[str, int] = {}
    ours = []
    try:
        for name in ("status", "stdout", "stderr"):
            read, theirs[name] = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, read)
            ours.append(read)
            os.set_blocking(read, False)
    except BaseException:
        close_all(*theirs.values())
        raise
    last_word, stdout, stderr = ours
    return Ends(last_word, stdout, stderr, theirs)


def give(control: socket.socket, things: Mapping[str, int]) -> None:
    """Let a process that was just born go, with all that it needs for its plan; ``OSError`` where that can't be had."""
    fds = array.array("i", things.values())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # as with go
        control.sendmsg([os.fsencode("\0".join(things))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


async def below(control: socket.socket, joiner: int) -> tuple[int, int]:
    """The pid of the one that goes on below in the joiner's place, and a pidfd; it waits to be let go."""
    said = await _hear(control, messages.BELOW)
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(said.sender) == joiner:  # otherwise it has ended, and its number is somebody else's
            return said.sender, os.pidfd_open(said.sender)
    raise SandboxError("the process ended as soon as it was in the sandbox")


async def confined(control: socket.socket) -> tuple[int, dict[str, int]]:
    """The pid of the program, which waits behind its walls, and its namespaces by name and tmpfs's by path.

    So is the ``listener``, where its plan has one.
    """
    found: dict[str, int] = {}
    try:
        while True:
            said = await _hear(control, messages.LISTENING, messages.FOUND, messages.CONFINED)
            assert said.fields is not None
            if said.fields["what"] == messages.CONFINED:
                return said.sender, found
            names = said.fields["fds"]
            if len(said.fds) != len(names):
                close_all(*said.fds)
                raise SandboxError("too many files are open here to take those of one more sandbox")
            found |= zip(names, said.fds, strict=True)
    except BaseException:
        close_all(*found.values())
        raise


async def listening(control: socket.socket) -> socket.socket:
    """The listener that somebody made for us."""
    said = await _hear(control, messages.LISTENING)
    if len(said.fds) != 1:
        raise SandboxError("too many files are open here to take one more listener")
    return as_listener(said.fds[0])


def as_listener(fd: int) -> socket.socket:
    """The socket that this descriptor is."""
    listener = socket.socket(fileno=fd)
    listener.setblocking(False)  # it is already, but the object doesn't know
    return listener


async def running(control: socket.socket) -> None:
    """Let the program go, and return when it has been exec'ed."""
    go(control)
    await _hear(control, None)


def go(control: socket.socket) -> None:
    """Tell it to go on."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; the next message is its end
        control.send(messages.GO.encode())


async def end(pidfd: int) -> None:
    """Kill a child and wait for it, whoever cancels."""
    with trio.CancelScope(shield=True):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        while not has_ended(pidfd):
            await trio.lowlevel.wait_readable(pidfd)
        reap(pidfd)


async def end_group(leader: int, pidfd: int) -> None:
    """The same for a child and for those that it made in its process group, whose pids nobody may have told us."""
    with trio.CancelScope(shield=True):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # first: from now on it makes nobody
        with contextlib.suppress(ProcessLookupError):  # it had no group of its own yet
            os.killpg(leader, signal.SIGKILL)
        while not has_ended(pidfd):
            await trio.lowlevel.wait_readable(pidfd)
        await trio.to_thread.run_sync(_reap_group, leader)
        with contextlib.suppress(ChildProcessError):  # it was in its group
            reap(pidfd)


def _reap_group(leader: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitid(os.P_PGID, leader, os.WEXITED)


async def bury(control: socket.socket) -> None:
    """Wait, whoever cancels, for a child that was made and not told of: it ends when nobody tells it to go."""
    control.shutdown(socket.SHUT_WR)
    pid = 0
    with trio.CancelScope(shield=True):
        while (said := await _receive(control)).fields is not None:
            close_all(*said.fds)
            pid = said.sender
        if pid:
            pidfd = os.pidfd_open(pid)
            try:
                await end(pidfd)
            finally:
                os.close(pidfd)


async def _hear(control: socket.socket, *wanted: str | None) -> _Said:
    """The next message after that of its birth, which must be one of ``wanted``; ``None`` is the end."""
    while (said := await _receive(control)).fields is not None and said.fields["what"] == messages.BORN:
        pass  # who asked the zygote knows it from there; this is for when that has died
    fields = said.fields
    if (fields and fields["what"]) in wanted:
        return said
    close_all(*said.fds)
    if fields is None:
        raise SandboxError(f"the process ended before it was {wanted[-1]}")
    if fields["what"] == messages.FAILED:
        raise StepFailed(fields["step"], fields["errno"], fields["text"])
    raise SandboxError(f"unexpected: {fields}")


async def _receive(control: socket.socket) -> _Said:
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_MAX_FDS * 4)
    while True:
        try:
            data, ancillary, _, _ = control.recvmsg(messages.MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(control)
        except ConnectionResetError:  # it ended without reading our last message
            return _Said(None)
    sender, fds = 0, array.array("i")
    for _, kind, value in ancillary:
        if kind == socket.SCM_CREDENTIALS:
            sender = _CREDENTIALS.unpack(bytes(value))[0]
        else:
            fds.frombytes(value)
    return _Said(_fields(data), sender, tuple(fds))


def _fields(data: bytes) -> dict[str, Any] | None:
    """A message, of which one that can't be read is nothing that anybody waits for."""
    try:
        return dict(json.loads(data)) if data else None
    except ValueError:
        return {"what": repr(data[:100])}


def close_all(*fds: int) -> None:
    """Close each of these descriptors."""
    for fd in fds:
        os.close(fd)
