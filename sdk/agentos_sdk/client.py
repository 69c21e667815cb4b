"""The Trio client: concurrent typed calls over one connection, withdrawn when their scope is cancelled."""

import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import trio
from attrs import define, field

from . import codec
from .blocking import absolute, absolute_cwd, as_text, check_owner, default_socket, from_here, unreachable
from .calls import agents, audit, host, inspect, messages, metrics, think
from .calls.connection import Cancel, Hello, Welcome
from .calls.permissions import Explain, Explained, GetPerms, PermsSet, SetPerms
from .calls.request import Request
from .errors import ConnectionFailed, from_reply
from .frames import MAX_ID, Frames, frame
from .opcodes import Op
from .streams import Outputs, Pages, Thoughts, asked, command_to_run

if TYPE_CHECKING:
    from .question import Options

Reply = TypeVar("Reply")

READ_SIZE = 64 << 10
MAX_QUEUED = 1 << 20  # bytes of requests waiting to be sent; a call beyond that waits first
MAX_UNTAKEN = 8 << 20  # unread bytes of one stream; beyond that the connection is not read
NO_LIMIT = [1 << 62] * 256


@asynccontextmanager
async def connect(
    socket_path: str | None = None,
    *,
    name: str | None = None,
    level: str | None = None,
    permissions: Mapping[str, object] | None = None,
) -> AsyncIterator["Kernel"]:
    """Connect to the kernel: ``async with connect() as kernel: await kernel.spawn(...)``.

    Without ``socket_path`` an agent connects to its own kernel, any other process to the operator's default one. With
    ``name``, ``level`` or ``permissions`` the connection is a guest's from its first call on, with that name and at
    most those rights. Raises :class:`ConnectionFailed` if there is no kernel, the ``CallError`` if it refuses the
    guest.
    """
    path = socket_path or default_socket()
    sock = await dial(path)
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            kernel = Kernel(path, trio.SocketStream(sock))
            nursery.start_soon(kernel._read)
            try:
                await kernel._greet(Hello(protocol=2, as_=name, level=level, permissions=permissions))
                nursery.start_soon(kernel._write)
                yield kernel
            except Exception as error:  # raised below: the nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    finally:
        sock.close()
    if failure is not None:
        raise failure


async def dial(path: str) -> trio.socket.SocketType:
    """A connected socket; raises :class:`ConnectionFailed` if there is no listener or it belongs to another user."""
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.connect(os.fspath(path))
        check_owner(sock, path)
    except OSError as error:
        sock.close()
        raise unreachable(path, error) from None
    except trio.Cancelled:
        sock.close()
        raise
    return sock


@define(eq=False)
class Pending:
    """A request without a reply yet. ``chunks`` is None if the reply isn't streamed."""

    op: int
    chunks: deque[bytes] | None = None
    reply: bytes | None = None
    _untaken: int = 0  # bytes in ``chunks``
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
        self._untaken -= len(chunk)
        return chunk

    async def put(self, chunk: bytes) -> None:
        """Store a chunk once there is room; drop it if the stream has been closed."""
        while self.chunks is not None and self._untaken >= MAX_UNTAKEN:
            await self._taken.wait()
        if self.chunks is not None:
            self.chunks.append(chunk)
            self._untaken += len(chunk)

    def drop_chunks(self) -> None:
        self.chunks = None
        self._taken.set()


class Kernel:
    """A connection to a kernel, with protocol 2.

    A call returns its typed reply, or raises the ``CallError`` that the kernel answered, or :class:`ConnectionFailed`
    if the connection is gone. ``id`` and ``name`` are those of this caller, as the kernel reports them.
    """

    id: int
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

    # -- Agents ----------------------------------------------------------------------------------------------------

    async def spawn(self, name: str, script: str | None = None, **options: Any) -> agents.Spawned:
        """Start an agent and wait until it is up: ``script``, or ``command=[...]``, and further fields of SPAWN.

        Relative paths are relative to this process. If cancelled, no agent is left behind.
        """
        fields = absolute({"name": name, "script": script, **options})
        return await self.call(codec.decode(agents.Spawn, fields))

    async def kill(
        self, name: str | None = None, *, id: int | None = None, grace: float | None = None
    ) -> agents.Killed:
        """Stop an agent for good; ``grace`` is the time between SIGTERM and SIGKILL, in seconds."""
        return await self.call(agents.Kill(name=name, id=id, grace=None if grace is None else codec.Seconds(grace)))

    async def wait(self, name: str | None = None, *, id: int | None = None) -> agents.Exited:
        """Wait until an agent has ended for good."""
        return await self.call(agents.Wait(name=name, id=id))

    async def pause(self, name: str | None = None, *, id: int | None = None) -> agents.Paused:
        """Stop (suspend) an agent's processes."""
        return await self.call(agents.Pause(name=name, id=id))

    async def resume(self, name: str | None = None, *, id: int | None = None) -> agents.Resumed:
        """Continue a paused agent."""
        return await self.call(agents.Resume(name=name, id=id))

    async def list_agents(self, all: bool = False) -> Sequence[agents.AgentInfo]:
        """The agents that are alive or will be restarted; with ``all`` also those that have ended for good."""
        return await self.call(agents.List(all=all))

    async def tree(self) -> Mapping[str, Any]:
        """The supervision tree, nested."""
        return (await self.call(agents.Tree())).tree

    async def inspect(self, name: str | None = None, *, id: int | None = None) -> inspect.Inspected:
        """Everything about one agent: how it was started, its isolation, limits and usage."""
        return await self.call(inspect.Inspect(name=name, id=id))

    async def metrics(self) -> metrics.SystemMetrics:
        """Metrics of the whole kernel; operator only."""
        return (await self.call(metrics.MetricsSystem())).metrics

    async def get_permissions(self, agent_id: int | None = None) -> Mapping[str, Any]:
        """The permissions of an agent, or our own, and the sets above that limit them."""
        return (await self.call(GetPerms(agent_id=agent_id))).permissions

    async def set_permissions(
        self,
        permissions: Mapping[str, object] | str | None = None,
        level: str | None = None,
        agent_id: int | None = None,
    ) -> PermsSet:
        """Change the permissions of an agent that we spawned: to a set, or by the name of a level or a set."""
        return await self.call(SetPerms(permissions=permissions, level=level, agent_id=agent_id))

    async def explain(self, agent: str | int, call: str, args: Mapping[str, object] | None = None) -> Explained:
        """What would be decided if an agent made a call, and by which rule; nothing is executed."""
        return await self.call(Explain(agent=agent, call=call, args=args or {}))

    async def get_audit_log(
        self,
        category: audit.Category | None = None,
        agent_id: int | None = None,
        since_id: int | None = None,
        limit: int = 100,
    ) -> Sequence[audit.AuditEntry]:
        """The newest entries of the audit log, oldest first; with ``since_id`` the first entries after that one."""
        request = audit.GetAuditLog(category=category, agent_id=agent_id, since_id=since_id, limit=limit)
        return (await self.call(request)).entries

    async def set_audit_config(self, **switches: bool) -> Mapping[str, bool]:
        """Switch the logging of allowed calls on or off, until the kernel ends: ``log_files=False``."""
        return (await self.call(codec.decode(audit.SetAuditConfig, switches))).config

    async def read_file(
        self, path: str, offset: int = 0, limit: int | None = None, encoding: "host.Encoding" = "utf-8"
    ) -> host.Content:
        """The content of a file, or ``limit`` bytes of it from ``offset`` on; for binary data pass base64 as encoding.

        A relative path is relative to this process.
        """
        return await self.call(host.Read(path=from_here(path), offset=offset, limit=limit, encoding=encoding))

    async def write_file(
        self,
        path: str,
        content: str | bytes,
        mode: Literal["write", "append"] = "write",
        encoding: "host.Encoding" = "utf-8",
    ) -> host.Written:
        """Write ``content`` to a file: replace the file, or append. Bytes are sent as base64.

        A relative path is relative to this process.
        """
        text, encoding = as_text(content, encoding)
        return await self.call(host.Write(path=from_here(path), content=codec.Text(text), mode=mode, encoding=encoding))

    async def exec(
        self,
        command: str | Sequence[str],
        name: str | None = None,
        *,
        id: int | None = None,
        cwd: str | None = None,
        timeout: float = 30.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> host.Executed:
        """Run a command, a bash command line or an argv, where this caller runs itself or in an agent's jail.

        If cancelled, no process of it is left running.
        """
        cwd = absolute_cwd(cwd, name, id)
        return await self.call(command_to_run(command, name, id, cwd, timeout, env, stdin))

    def exec_stream(
        self,
        command: str | Sequence[str],
        name: str | None = None,
        *,
        id: int | None = None,
        cwd: str | None = None,
        timeout: float = 30.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Outputs:
        """Like :meth:`exec`, with its output as it is written: ``async with kernel.exec_stream("make") as parts``.

        Each part has ``stream`` and ``text``. At the end ``parts.executed`` is the reply. Leaving it early kills the
        command.
        """
        cwd = absolute_cwd(cwd, name, id)
        return Outputs(self, command_to_run(command, name, id, cwd, timeout, env, stdin, stream=True))

    async def logs(self, name: str | None = None, *, id: int | None = None, tail: int = 100) -> agents.LogsReply:
        """The last lines of an agent's output."""
        return await self.call(agents.Logs(name=name, id=id, tail=tail))

    def follow_logs(self, name: str | None = None, *, id: int | None = None, tail: int = 100) -> Pages:
        """The last lines, then new ones: ``async with kernel.follow_logs("w") as pages: async for page ...``."""
        return Pages(self, agents.Logs(name=name, id=id, tail=tail, follow=True))

    # -- Messages --------------------------------------------------------------------------------------------------

    async def send(self, message: object, *, to: int | None = None, to_name: str | None = None) -> messages.Sent:
        """Send a message to another mailbox, by id or by name."""
        return await self.call(messages.Send(message=message, to=to, to_name=to_name))

    async def recv(self, max: int = 10, timeout: float = 86400.0) -> Sequence[messages.Message]:
        """Receive messages from our mailbox; waits up to ``timeout`` seconds for the first."""
        reply = await self.call(messages.Recv(max=max, timeout=codec.Seconds(timeout)))
        return reply.messages

    async def broadcast(self, message: object, *, include_self: bool = False) -> messages.Delivered:
        """Send a message to all mailboxes."""
        return await self.call(messages.Broadcast(message=message, include_self=include_self))

    async def register(self, name: str) -> messages.Registered:
        """Make us reachable by ``name``."""
        return await self.call(messages.Register(name=name))

    # -- The model -------------------------------------------------------------------------------------------------

    async def think(self, prompt: str | None = None, **options: "Unpack[Options]") -> think.Thought:
        """Ask the model: ``prompt``, ``messages`` before it, and further fields of THINK.

        ``image`` and each of ``images`` are bytes or a file's path. If cancelled, the request is withdrawn.
        """
        return self._reply(think.Think, await self.exchange(Op.THINK, await asked(prompt, options)))

    def think_stream(self, prompt: str | None = None, **options: "Unpack[Options]") -> Thoughts:
        """Like :meth:`think`, but yields the answer in pieces.

        Usage: ``async with kernel.think_stream("Why?") as deltas: async for delta in deltas``.

        At the end ``deltas.thought`` is the whole answer.
        """
        return Thoughts(self, prompt, options)

    # -- Any call --------------------------------------------------------------------------------------------------

    async def echo(self, data: bytes) -> bytes:
        """Send bytes to the kernel and get them back."""
        return await self.exchange(Op.NOOP, data)

    async def call(self, request: Request[Reply]) -> Reply:
        """Make a call and return its reply; raises the ``CallError`` that the kernel answered."""
        return self._reply(type(request), await self.exchange(request.op, codec.encode(request)))

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
        data = codec.parse(body)
        if isinstance(data, dict) and data.get("success") is False:
            raise from_reply(data)
        reply: Reply = codec.decode(request.reply, data)
        return reply

    async def _begin(self, op: int, body: bytes, chunks: deque[bytes] | None = None) -> tuple[int, Pending]:
        while self._queued > MAX_QUEUED and self._broken is None:
            await self._drained.wait()
        if self._broken is not None:
            raise ConnectionFailed(str(self._broken))
        number = self._free_number()
        pending = self._pending[number] = Pending(op, chunks)
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
        self.id, self.name = welcome.agent_id, welcome.name

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
        self._broken = ConnectionFailed(f"the connection to the kernel at {self.path} is gone: {why}")
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
