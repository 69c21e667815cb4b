"""Listening sockets: accepts connections, identifies their callers (SO_PEERCRED) and serves each in its own task."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import trio
from attrs import define, field, frozen

from agentos.kernel.caller import MAX_CONNECTIONS, Caller
from agentos.kernel.internal_errors import internal
from agentos.threads import run_in_thread
from agentos_sdk.errors import Busy, CallError
from agentos_sdk.frames import frame
from agentos_sdk.opcodes import Op

from .connection import Connection
from .poller import Poller
from .replies import encode_error
from .turns import Turns

log = logging.getLogger(__name__)

BACKLOG = 1024
MAX_PATH_BYTES = 107  # bytes of a socket's path
OPERATOR_RESERVE = 64  # connections kept free for the operator, however many the agents open
ACCEPT_BATCH = 16  # connections before other kernel tasks run
MAX_ADMITTING = 32  # connections being identified at the same time; the others wait
CHECK_SECONDS = 2.0  # between two looks whether the operator's socket is there
LOCK_TRIES, LOCK_PAUSE_SECONDS = 20, 0.05  # of the lock between kernels that begin to listen in one directory
ACCEPT_PAUSE_SECONDS = 0.1  # seconds without accept() after the process ran out of file descriptors


class ListenError(Exception):
    """The socket can't be created at this path; the text says why and what to do."""


@frozen
class Peer:
    """The process at the other end, as reported by Linux (SO_PEERCRED) at the time of its connect()."""

    pid: int
    uid: int

    @classmethod
    def of(cls, sock: socket.socket) -> "Peer":
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return cls(pid, uid)


@define
class ConnectionLimit:
    """Number of connections over all listening sockets of one kernel, and their limit.

    The last :data:`OPERATOR_RESERVE` are the operator's. Families of agents share the others, R: while F of these are
    free, a family may have one more if it holds fewer than F * F / R. No connection is ended for another family's, so
    the first to come must leave enough: alone, a family gets 38 % of R, and k families that take all they can leave
    R / (k + 1) or more, if R is more than k * k. With half of what is free for each, the tenth would find a thousandth
    of R; with R divided by the number of families, the fourth nothing.

    An accepted connection takes a file descriptor before it is admitted: ``waiting`` counts those of agents' sockets.
    """

    capacity: int
    connections: int = 0
    waiting: int = 0
    _families: Counter[str] = field(factory=Counter, init=False)  # connections of agents, by family

    def describe_full(self, caller: Caller, *, proven: bool = True) -> str | None:
        """Why this caller can't have one more connection; None if it can.

        ``proven``: it is known to be the caller's. Of a TCP port it isn't: every user of the host can connect to it.
        """
        if caller.allowance.connections >= MAX_CONNECTIONS:
            return f"{caller.name} has {MAX_CONNECTIONS} connections already: close one first"
        room = self.capacity - (OPERATOR_RESERVE if caller.kind == "agent" or not proven else 0)
        free = room - self.connections
        if free <= 0:
            return f"the kernel holds {self.connections} connections (kernel.max_connections = {self.capacity})"
        if caller.kind == "agent" and (held := self._families[caller.family]) * room >= free * free:
            return (
                f"{caller.name} with its family has {held} of the kernel's {self.connections} connections, and what is "
                f"free is kept for others (kernel.max_connections = {self.capacity}): close one first"
            )
        return None

    @contextlib.contextmanager
    def count(self, caller: Caller) -> Iterator[None]:
        """Count one connection of ``caller``, and of its family, for the time of the block."""
        family = caller.family if caller.kind == "agent" else None  # an operator's connection may become a guest's
        self.connections += 1
        if family is not None:
            self._families[family] += 1
        try:
            yield
        finally:
            self.connections -= 1
            if family is not None:
                self._families[family] -= 1
                if not self._families[family]:
                    del self._families[family]

    def may_accept(self, own: int, is_agents: bool) -> bool:
        """Whether a socket with ``own`` accepted connections that wait may have more; others wait in Linux's backlog.

        With many agents what waits at their sockets together counts as well, but each may have one.
        """
        if not is_agents:
            return own < max(OPERATOR_RESERVE, self.capacity - self.connections)
        return not own or (own < MAX_CONNECTIONS and self.connections + self.waiting < self.capacity)


@define(eq=False)
class Listener:
    """Accepts connections of one listening socket and admits them: processes in turn, each one's connections in order.

    ``admit`` identifies a peer, or raises a ``CallError`` that is sent to the peer before the connection is closed.
    ``dismiss`` is called when a connection is over. ``is_agents``: the socket is an agent's, not the operator's.
    """

    listener: socket.socket
    connection_limit: ConnectionLimit
    poller: Poller
    admit: Callable[[Peer], Awaitable[Caller]]
    dismiss: Callable[[Caller], None] = field(default=lambda caller: None)
    is_agents: bool = False
    _waiting: Turns[Peer, socket.socket] = field(factory=Turns, init=False)
    _admitting: int = field(default=0, init=False)
    _starting: bool = field(default=False, init=False)  # a task for a connection has not run yet
    _nursery: trio.Nursery = field(init=False)  # of the connections

    async def serve(self) -> None:
        """Accept and admit connections until cancelled."""
        try:
            async with trio.open_nursery() as connections:
                self.start(connections)
                await trio.sleep_forever()
        finally:
            self.stop()

    def start(self, connections: trio.Nursery) -> None:
        """Accept and admit connections, and serve them in this nursery, until :meth:`stop`."""
        self._nursery = connections
        self.poller.watch(self.listener.fileno(), self._accept_some, connections)
        self._accept_some()  # a program may have connected while it was being started

    def stop(self) -> None:
        """Accept no more connections, and close those that wait for admission. Call it before the socket is closed."""
        self.poller.forget(self.listener.fileno())
        for sock in self._waiting.clear():
            self.connection_limit.waiting -= self.is_agents
            sock.close()

    def _accept_some(self, events: int = 0) -> None:
        pause = self._accept()
        if pause is not None:
            self.poller.forget(self.listener.fileno())
            self._nursery.start_soon(self._accept_again, pause)

    async def _accept_again(self, pause: float) -> None:
        """Accept further connections in ``pause`` seconds, and not before there is room for them."""
        await trio.sleep(pause)
        while not self.connection_limit.may_accept(len(self._waiting), self.is_agents):
            await self._waiting.wait_taken()
        self.start(self._nursery)

    def _accept(self) -> float | None:
        """Accept connections faster than they are admitted, so that admission can alternate between processes.

        Returns for how many seconds no more may be accepted, or None to go on.
        """
        pause = None
        for _ in range(ACCEPT_BATCH):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    log.warning("no connection can be accepted for %s s: %s", ACCEPT_PAUSE_SECONDS, error)
                    pause = ACCEPT_PAUSE_SECONDS
                break  # e.g. the peer closed the connection before it was accepted
            sock.setblocking(False)
            self._waiting.add(Peer.of(sock), sock)
            self.connection_limit.waiting += self.is_agents
            if not self.connection_limit.may_accept(len(self._waiting), self.is_agents):
                pause = 0.0
                break
        self._admit_next()
        return pause

    def _admit_next(self) -> None:
        """Start a task for the next connection. That task starts the next one: Trio runs new tasks in random order."""
        if len(self._waiting) and not self._starting and self._admitting < MAX_ADMITTING:
            peer, sock = self._waiting.take()
            self.connection_limit.waiting -= self.is_agents
            self._admitting += 1
            self._starting = True
            self._nursery.start_soon(self._receive, sock, peer)

    async def _receive(self, sock: socket.socket, peer: Peer) -> None:
        self._starting = False
        self._admit_next()
        with sock:
            try:
                caller = await self.admit(peer)
            except Exception as error:  # including no thread or file descriptor left to identify the peer
                refuse(
                    sock, error if isinstance(error, CallError) else Busy(f"no connection can be admitted now: {error}")
                )
                return
            finally:
                self._admitting -= 1
                self._admit_next()
            await serve_connection(sock, caller, self.connection_limit, self.poller, self.dismiss)


async def serve_connection(
    sock: socket.socket, caller: Caller, limit: ConnectionLimit, poller: Poller, dismiss: Callable[[Caller], None]
) -> None:
    """Serve an admitted connection until it is over, unless ``limit`` is reached; a defect ends this one alone."""
    try:
        full = limit.describe_full(caller)
        if full is not None:
            refuse(sock, Busy(full))
            return
        caller.allowance.add_connections(1)
        try:
            with limit.count(caller):
                await Connection(sock, caller, poller).serve()
        except Exception as bug:
            internal(bug, f"a connection of {caller.name}, which it ended")
        finally:
            caller.allowance.add_connections(-1)
    finally:
        dismiss(caller)


def refuse(sock: socket.socket, error: Exception) -> None:
    """Send a peer the reason why it isn't admitted, as far as the socket takes it at once."""
    with contextlib.suppress(OSError):  # the peer has closed the connection
        sock.send(frame(0, Op.NOOP, encode_error(error)))


def listen(path: str) -> socket.socket:
    """Open a listening socket at ``path``; replaces a stale socket there, but not a live or foreign one.

    Raises :class:`ListenError` if the path is in use by something else.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ListenError(
            f"{path}: a socket's path has at most {MAX_PATH_BYTES} bytes: choose a shorter one with --socket"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(sock.fileno(), 0o600)  # bind() creates the file with this mode: no other user can ever connect
        _remove_stale_socket(path)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(f"{path}: can't listen here: {error.strerror or error}") from None
    except ListenError:
        sock.close()
        raise
    return sock


def listen_for_operators(path: str) -> socket.socket:
    """:func:`listen`, one kernel at a time: two that find the same stale socket would each remove it. Blocks.

    A lock that is held for longer than a second is another program's, and isn't waited for.
    """
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError):  # listen() says what is wrong with the directory
            directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, directory)
            for _ in range(LOCK_TRIES):
                try:
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(LOCK_PAUSE_SECONDS)
        return listen(path)


async def listen_again(path: str, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
    """Listen anew whenever the socket at ``path`` was removed, until cancelled; its connections go on.

    What sweeps directories for temporary files removes it, and so does the end of a login session.
    """
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(CHECK_SECONDS)
            if await run_in_thread(os.path.lexists, path):
                continue
            try:
                sock = await run_in_thread(listen_for_operators, path)
            except ListenError as error:
                log.warning("the kernel's socket was removed, and can't be made again: %s", error)
                continue
            log.warning("%s was removed: the kernel listens there again", path)
            nursery.start_soon(_serve_and_close, sock, serve)


async def _serve_and_close(sock: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
    with sock:
        await serve(sock)


def _remove_stale_socket(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if (found.st_mode & 0o170000) != 0o140000:
        raise ListenError(f"{path}: what is there is no socket: choose another path with --socket")
    if found.st_uid != os.geteuid():
        raise ListenError(f"{path}: the socket there belongs to uid {found.st_uid}: choose another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        else:
            raise ListenError(
                f"{path}: a kernel is listening there already: stop it or choose another path with --socket"
            )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
