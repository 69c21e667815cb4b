"""The Trio client: concurrent typed calls over one connection, withdrawn when their scope is cancelled."""

import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Literal, TypeVar

import trio
from attrs import define, field

from .blocking import check_owner, connection_error, default_socket
from .calls.connection import Cancel, Hello, Welcome
from .calls.request import Request
from .clients.trio_calls import TrioCalls
from .clients.trio_mail import LeasedMessages
from .clients.trio_state import TrioState
from .encoding import codec
from .encoding.quantities import Seconds
from .errors import ConnectionFailed, from_reply
from .frames import MAX_ID, Frames, frame
from .opcodes import Op

Reply = TypeVar("Reply")
T = TypeVar("T")

READ_SIZE = 64 << 10
MAX_QUEUED_BYTES = 1 << 20  # bytes of requests waiting to be sent; a call beyond that waits first
MAX_UNREAD_BYTES = 8 << 20  # of one stream, as a default; beyond that the connection is not read
NO_LIMIT = [1 << 62] * 256


@asynccontextmanager
async def connect(
    socket_path: str | None = None,
    *,
    name: str | None = None,
    level: str | None = None,
    permissions: Mapping[str, object] | None = None,
    approval_timeout: float | None = None,
    mailbox: Literal["kept", "memory"] = "memory",
) -> AsyncIterator["Kernel"]:
    """Connect to the kernel: ``async with connect() as kernel: await kernel.spawn(...)``.

    Without ``socket_path`` an agent connects to its own kernel, any other process to the operator's default one. With
    ``name``, ``level`` or ``permissions`` the connection is a guest's from its first call on, with that name and at
    most those rights. ``approval_timeout`` is how many seconds its calls wait for a person where a rule asks. What
    isn't read of a ``kept`` mailbox waits for the next guest of that name. Raises :class:`ConnectionFailed` if there is
    no kernel, the ``CallError`` if it refuses the guest.
    """
    path = socket_path or default_socket()
    hello = Hello(
        protocol=2,
        as_=name,
        level=level,
        permissions=permissions,
        approval_timeout=Seconds(approval_timeout) if approval_timeout is not None else None,
        mailbox=mailbox,
    )
    async with attach(await open_connection(path), path, hello) as kernel:
        yield kernel


@asynccontextmanager
async def attach(sock: trio.socket.SocketType, path: str, hello: Hello) -> AsyncIterator["Kernel"]:
    """The client of a connected socket, whose first call is ``hello``; ``path`` names it. Closes the socket.

    Raises as :func:`connect` does.
    """
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            kernel = Kernel(path, trio.SocketStream(sock))
            nursery.start_soon(kernel._read)
            try:
                await kernel._greet(hello)
                nursery.start_soon(kernel._write)
                yield kernel
            except Exception as error:  # raised below: the nursery would wrap it in a group
                failure = error
            finally:
                kernel._end_all("closed by this program")  # calls of tasks that outlive this block
            nursery.cancel_scope.cancel()
    finally:
        sock.close()
    if failure is not None:
        raise failure


async def open_connection(path: str) -> trio.socket.SocketType:
    """A connected socket; raises :class:`ConnectionFailed` if there is no listener or it belongs to another user."""
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.connect(os.fspath(path))
        check_owner(sock, path)
    except OSError as error:
        sock.close()
        raise connection_error(path, error) from None
    except trio.Cancelled:
        sock.close()
        raise
    return sock


@define(eq=False)
class Pending:
    """A request without a reply yet. ``chunks`` is None if the reply isn't streamed."""

    op: int
    chunks: deque[bytes] | None = None
    max_unread: int = MAX_UNREAD_BYTES
    reply: bytes | None = None
    _unread_bytes: int = 0  # bytes in ``chunks``
    _changed: trio.Event = field(factory=trio.Event)
    _taken: trio.Event = field(factory=trio.Event)

    def notify(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()

    def take(self) -> bytes | None:
        """The next chunk, or None."""
        if not self.chunks:
            return None
        self._taken.set()
        self._taken = trio.Event()
        chunk = self.chunks.popleft()
        self._unread_bytes -= len(chunk)
        return chunk

    async def put(self, chunk: bytes) -> None:
        """Store a chunk once there is room; drop it if the stream has been closed."""
        while self.chunks is not None and self._unread_bytes >= self.max_unread:
            await self._taken.wait()
        if self.chunks is not None:
            self.chunks.append(chunk)
            self._unread_bytes += len(chunk)

    def drop_chunks(self) -> None:
        self.chunks = None
        self._taken.set()


class Kernel(TrioCalls):
    """A connection to a kernel, with protocol 2. Its calls are the methods of :class:`TrioCalls`.

    A call returns its typed reply, or raises the ``CallError`` that the kernel answered, or :class:`ConnectionFailed`
    if the connection is gone. If its scope is cancelled the request is withdrawn: no agent or command is left running.
    ``agent_id`` and ``name`` are those of this caller, as the kernel reports them.
    """

    agent_id: int
    name: str

    def __init__(self, path: str, stream: trio.SocketStream) -> None:
        self.path = path
        self._stream = stream
        self._frames = Frames(NO_LIMIT)
        self._pending: dict[int, Pending] = {}
        self._number = 0
        self._outbox: deque[bytes] = deque()
        self._queued = 0  # bytes in the outbox
        self._filled = trio.Event()
        self._drained = trio.Event()
        self._broken: ConnectionFailed | None = None
        self._ended = trio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up: false once the kernel has closed it."""
        return not self._ended.is_set()

    async def wait_disconnected(self) -> None:
        """Return when the kernel has closed the connection, at once if it has."""
        await self._ended.wait()

    @property
    def state(self) -> TrioState:
        """The global keys of the kernel's state; ``state.agent`` and ``state.session`` are the others."""
        return TrioState(self)

    def messages(self, lease: float = 60.0) -> LeasedMessages:
        """The messages of the own mailbox as they come, each acknowledged at the end of the loop's body.

        A body that takes longer than ``lease`` seconds, raises or leaves the loop leaves its message unacknowledged: it
        comes again, with ``attempt`` one higher. Raises the call's error.
        """
        return LeasedMessages(self, lease)

    # -- Any call --------------------------------------------------------------------------------------------------

    async def echo(self, message: str | bytes) -> str:
        """Send bytes through the kernel and back."""
        data = message.encode() if isinstance(message, str) else message
        return (await self.exchange(Op.NOOP, data)).decode(errors="replace")

    async def call(self, request: Request[Reply]) -> Reply:
        """Make a call and return its reply; raises the ``CallError`` that the kernel answered."""
        return self._reply(type(request), await self.exchange(request.op, codec.encode(request)))

    async def make_call(self, request: type[Request[Reply]], fields: Mapping[str, object]) -> Reply:
        """Make a call with these fields of its request, as on the wire; the kernel's defaults hold for the others."""
        return self._reply(request, await self.exchange(request.op, codec.encode(fields)))

    async def exchange(self, op: int, body: bytes) -> bytes:
        """Make a call by opcode with an encoded body; returns the body of the reply."""
        number, pending = await self._begin(op, body)
        try:
            while pending.reply is None:
                await self._change(pending)
        finally:
            self._end(number, pending)
        return pending.reply

    def _reply(self, request: type[Request[Reply]], body: bytes) -> Reply:
        reply: Reply = self._decode(request.reply, body)
        return reply

    def _decode(self, kind: type[T], body: bytes) -> T:
        """A reply or a CHUNK as a value of this type.

        Raises the kernel's ``CallError``, or :class:`ConnectionFailed` if it is no such value.
        """
        try:
            data = codec.parse(body, codec.REPLY_DEPTH)
            if not (isinstance(data, dict) and data.get("success") is False):
                return codec.decode(kind, data)
        except ValueError as error:
            why = f"the kernel at {self.path} answered what this program can't read; is it of another version? {error}"
            raise ConnectionFailed(why) from None
        raise from_reply(data)

    async def _begin(
        self, op: int, body: bytes, chunks: deque[bytes] | None = None, max_unread: int | None = None
    ) -> tuple[int, Pending]:
        while self._queued > MAX_QUEUED_BYTES and self._broken is None:
            await self._drained.wait()
        if self._broken is not None:
            raise ConnectionFailed(str(self._broken))
        number = self._free_number()
        pending = self._pending[number] = Pending(op, chunks, max_unread or MAX_UNREAD_BYTES)
        self._queue(frame(number, op, body))
        return number, pending

    def _free_number(self) -> int:
        self._number = self._number % MAX_ID + 1
        while self._number in self._pending:
            self._number = self._number % MAX_ID + 1
        return self._number

    async def _change(self, pending: Pending) -> None:
        if self._broken is not None:
            raise ConnectionFailed(str(self._broken))
        await pending.changed()

    def _end(self, number: int, pending: Pending) -> None:
        """Remove a request; if it is unanswered, cancel it and ignore its reply."""
        if pending.reply is None and self._broken is None:
            withdrawal = self._free_number()
            self._pending[withdrawal] = Pending(Op.CANCEL)
            self._queue(frame(withdrawal, Op.CANCEL, codec.encode(Cancel(id=number))))
            pending.drop_chunks()
        else:
            self._pending.pop(number, None)

    def _queue(self, data: bytes) -> None:
        self._outbox.append(data)
        self._queued += len(data)
        self._filled.set()

    # -- The socket ------------------------------------------------------------------------------------------------

    async def _greet(self, request: Hello) -> None:
        """Send HELLO in version 1; the next frame is in version 2."""
        self._pending[0] = pending = Pending(Op.HELLO)
        with suppress(trio.BrokenResourceError):  # the kernel may have sent an error before it closed
            await self._stream.send_all(frame(0, Op.HELLO, codec.encode(request)))
        while pending.reply is None:
            await self._change(pending)
        welcome: Welcome = self._reply(Hello, pending.reply)
        self.agent_id, self.name = welcome.agent_id, welcome.name

    async def _write(self) -> None:
        try:
            while True:
                await self._filled.wait()
                self._filled = trio.Event()
                data = b"".join(self._outbox)
                self._outbox.clear()
                self._queued = 0
                self._drained.set()
                self._drained = trio.Event()
                await self._stream.send_all(data)
        except trio.BrokenResourceError:
            pass  # the reader reports it

    async def _read(self) -> None:
        why = "closed by the kernel"
        try:
            while data := await self._stream.receive_some(READ_SIZE):
                for number, op, body in self._frames.take(data):
                    await self._arrived(number, op, body)
                if self._frames.broken is not None:
                    why = str(self._frames.broken)
                    break
        except trio.BrokenResourceError as error:
            why = str(error.__cause__ or error)
        self._end_all(why)

    def _end_all(self, why: str) -> None:
        """Fail all requests that are unanswered, and all later ones."""
        if self._broken is not None:
            return
        self._broken = ConnectionFailed(f"the connection to the kernel at {self.path} is gone: {why}")
        self._ended.set()
        self._drained.set()
        for pending in self._pending.values():
            pending.notify()

    async def _arrived(self, number: int, op: int, body: bytes) -> None:
        if 0 in self._pending:  # the reply to HELLO is in version 1, with our caller id
            number = 0
        pending = self._pending.get(number)
        if pending is None:
            return
        if op == Op.CHUNK:
            await pending.put(body)
        else:
            pending.reply = body
            del self._pending[number]
        pending.notify()
