"""A listening socket: who comes in becomes a caller, and each connection a task that ends alone."""

import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field, frozen

from agentos_sdk.errors import Busy, CallError
from agentos_sdk.frames import frame
from agentos_sdk.opcodes import Op

from .bugs import internal
from .caller import MAX_CONNECTIONS, Caller
from .connection import Connection
from .table import failed
from .turns import Turns

log = logging.getLogger(__name__)

BACKLOG = 1024
RESERVE = 64  # connections kept free for the operator, whatever the agents open
ACCEPTED_AT_ONCE = 16  # connections, until others of the kernel's tasks have their turn
ADMITTED_AT_ONCE = 32  # connections whose callers are being identified; the others wait
PAUSE = 0.1  # seconds that nobody is let in after the process ran out of file descriptors


class DoorError(Exception):
    """The socket can't be made here; the text says why and what to do."""


@frozen
class Peer:
    """Who the Linux kernel says is at the other end, as of its connect()."""

    pid: int
    uid: int

    @classmethod
    def of(cls, sock: socket.socket) -> "Peer":
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return cls(pid, uid)


@define
class House:
    """How many connections there are behind all the doors of one kernel, and how many there may be."""

    capacity: int
    connections: int = 0

    def full_for(self, caller: Caller) -> str | None:
        """Why one more connection of this caller's can't be had; None if it can."""
        if caller.allowance.connections >= MAX_CONNECTIONS:
            return f"{caller.name} has {MAX_CONNECTIONS} connections already: close one first"
        reserve = RESERVE if caller.kind == "agent" else 0
        if self.connections >= self.capacity - reserve:
            return f"the kernel holds {self.connections} connections (kernel.max_connections = {self.capacity})"
        return None

    @property
    def waiting(self) -> int:
        """How many accepted connections may wait to be admitted behind one door; the others wait in Linux's backlog."""
        return max(RESERVE, self.capacity - self.connections)


@define(eq=False)
class Door:
    """Lets callers in through one listening socket: processes in turn, each one's connections in their order.

    ``admit`` says who a peer is, or raises a ``CallError`` that the peer is told before it is let go. ``left`` is
    called when a connection is over.
    """

    listener: socket.socket
    house: House
    admit: Callable[[Peer], Awaitable[Caller]]
    left: Callable[[Caller], None] = field(default=lambda caller: None)
    _waiting: Turns[Peer, socket.socket] = field(factory=Turns, init=False)
    _admitting: trio.Semaphore = field(factory=lambda: trio.Semaphore(ADMITTED_AT_ONCE), init=False)

    async def serve(self) -> None:
        """Let callers in until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accept)
                while True:
                    await self._admitting.acquire()
                    peer, sock = await self._waiting.take()
                    nursery.start_soon(self._receive, sock, peer)
        finally:
            for sock in self._waiting.clear():
                sock.close()

    async def _accept(self) -> None:
        """Accept connections faster than they are admitted, so that a late one needn't wait for all before it."""
        while True:
            await trio.lowlevel.wait_readable(self.listener)
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    sock, _ = self.listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                        log.warning("no connection can be accepted for %s s: %s", PAUSE, error)
                        await trio.sleep(PAUSE)
                    break  # e.g. the peer has gone before it was let in
                sock.setblocking(False)
                self._waiting.add(Peer.of(sock), sock)
                while len(self._waiting) >= self.house.waiting:
                    await self._waiting.until_taken()

    async def _receive(self, sock: socket.socket, peer: Peer) -> None:
        with sock:
            try:
                caller = await self.admit(peer)
            except Exception as error:  # also no thread or no descriptor for looking who it is
                refuse(sock, error if isinstance(error, CallError) else Busy(f"nobody can be let in now: {error}"))
                return
            finally:
                self._admitting.release()
            try:
                full = self.house.full_for(caller)
                if full is not None:
                    refuse(sock, Busy(full))
                    return
                caller.allowance.connections += 1
                self.house.connections += 1
                try:
                    await Connection(sock, caller).serve()
                except Exception as bug:
                    internal(bug, f"a connection of {caller.name}, which it ended")
                finally:
                    caller.allowance.connections -= 1
                    self.house.connections -= 1
            finally:
                self.left(caller)


def refuse(sock: socket.socket, error: Exception) -> None:
    """Tell a peer that isn't let in why; as much of it as goes out at once."""
    with contextlib.suppress(OSError):  # it doesn't listen, so it isn't told
        sock.send(frame(0, Op.NOOP, failed(error)))


def listen(path: str, mode: int = 0o600) -> socket.socket:
    """A listening socket at ``path``; a stale socket there is replaced, a live or foreign one is not.

    Raises :class:`DoorError` where something else has that name.
    """
    if len(os.fsencode(path)) > 107:
        raise DoorError(f"{path}: a socket's path has at most 107 bytes: choose a shorter one with --socket")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(
            sock.fileno(), mode
        )  # Linux gives bind()'s file this mode: there is no moment when others may connect
        _make_way(path)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise DoorError(f"{path}: can't listen here: {error.strerror or error}") from None
    except DoorError:
        sock.close()
        raise
    return sock


def _make_way(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if (found.st_mode & 0o170000) != 0o140000:
        raise DoorError(f"{path}: what is there is no socket: choose another path with --socket")
    if found.st_uid != os.geteuid():
        raise DoorError(f"{path}: the socket there belongs to uid {found.st_uid}: choose another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        else:
            raise DoorError(
                f"{path}: a kernel is listening there already: stop it or choose another path with --socket"
            )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
