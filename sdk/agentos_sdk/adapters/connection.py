"""System calls for programs with threads or asyncio: each call has a connection of its own.

So calls may be made at the same time from any thread and any event loop, and a cancelled one is withdrawn: its
connection is closed, and the kernel ends what it began.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from typing import Any, TypeVar

from agentos_sdk.blocking import AgentOSClient, check_owner, connection_error, encode, error_text, parse_reply
from agentos_sdk.encoding.chunks import stream_call
from agentos_sdk.errors import CallError, ConnectionFailed, from_reply
from agentos_sdk.frames import HEADER, MAGIC, frame
from agentos_sdk.loop.blocking_driver import BlockingDriver
from agentos_sdk.loop.engine.effects import Call, Effect, NextPiece, OpenStream, Run, Sleep, Together, Work, drive
from agentos_sdk.opcodes import Op

Reply = dict[str, Any]
T = TypeVar("T")


class KernelConnection:
    """Where the kernel is and as whom its calls are made; connects with each call.

    Without ``socket_path`` an agent talks to its own kernel, any other process to the operator's default one. With
    ``name``, ``level`` or ``permissions`` the calls are a guest's with that name and at most those rights.
    """

    def __init__(
        self,
        socket_path: str | None = None,
        *,
        name: str | None = None,
        level: str | None = None,
        permissions: Mapping[str, object] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {"name": name, "level": level, "permissions": permissions}
        self._socket_path = socket_path

    # -- Blocking ------------------------------------------------------------------------------------------------------

    def call(self, op: Op, fields: Mapping[str, object]) -> Reply:
        """The reply to a call; raises the ``CallError`` that the kernel answered."""
        with self._client() as client:
            return _check(client.call(op, encode(_given(fields)), wait=None))

    def stream(self, op: Op, fields: Mapping[str, object]) -> Iterator[tuple[bool, Reply]]:
        """The parts of a streamed reply, then the reply itself with True; raises the ``CallError`` of a failed one."""
        client = self._client()
        with closing(stream_call(client.socket_path, op, {**fields, "stream": True}, client._hellos)) as parts:
            for got, body in parts:
                yield got != Op.CHUNK, body

    def run(self, work: Work[T]) -> T:
        """The result of a tool's work, done in this thread."""
        with self._client() as client:
            return BlockingDriver(client).run(work)

    # -- asyncio -------------------------------------------------------------------------------------------------------

    async def acall(self, op: Op, fields: Mapping[str, object]) -> Reply:
        """As :meth:`call`; withdrawn if the task is cancelled."""
        async with self._frames(op, fields) as frames:
            return _check((await anext(frames))[1])

    async def astream(self, op: Op, fields: Mapping[str, object]) -> AsyncGenerator[tuple[bool, Reply]]:
        """As :meth:`stream`; withdrawn if the generator is closed or the task cancelled."""
        async with self._frames(op, {**fields, "stream": True}) as frames:
            async for got, body in frames:
                yield got != Op.CHUNK, (parse_reply if got == Op.CHUNK else _check)(body)

    async def arun(self, work: Work[T]) -> T:
        """As :meth:`run`, on the event loop; functions of the work that may block have a thread."""
        streams: list[Any] = []
        try:
            return await drive(work, lambda effect: self._perform(effect, streams))
        finally:
            for stream in streams:
                await stream.aclose()

    async def _perform(self, effect: Effect, streams: list[Any]) -> Any:
        match effect:
            case Call():
                async with self._frames(Op(effect.op), effect.fields) as frames:
                    return parse_reply((await anext(frames))[1])
            case OpenStream():
                streams.append(self.astream(Op(effect.op), effect.fields))
                return streams[-1]
            case NextPiece():
                try:
                    return await anext(effect.stream)
                except CallError as failed:
                    return True, {"success": False, "code": failed.code, "error": str(failed), **failed.details}
            case Run():
                return await asyncio.to_thread(partial(effect.function, **effect.arguments))
            case Sleep():
                return await asyncio.sleep(effect.seconds)
            case Together():
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.arun(each)) for each in effect.works]
                return [task.result() for task in tasks]

    # -- The connection ------------------------------------------------------------------------------------------------

    def _client(self) -> AgentOSClient:
        return AgentOSClient(self._socket_path, **self._settings)

    @asynccontextmanager
    async def _frames(self, op: Op, fields: Mapping[str, object]) -> AsyncIterator[AsyncIterator[tuple[int, bytes]]]:
        """The frames that answer a call, the last one its reply; leaving the block closes the connection."""
        client = self._client()
        reader, writer = await _open(client.socket_path)
        try:
            for body in (*client._hellos, b'{"protocol":2}'):
                await _exchange_hello(reader, writer, body)
            writer.write(frame(1, op, encode(_given(fields))))
            async with aclosing(_read_frames(reader, client.socket_path)) as frames:
                yield frames
        except (OSError, ValueError) as error:
            if isinstance(error, ConnectionFailed):
                raise
            raise ConnectionFailed(f"the connection to the kernel at {client.socket_path} broke: {error}") from None
        finally:
            writer.close()


def _check(body: bytes) -> Reply:
    """A reply; a failed one is raised as its exception. KILL's says only whether the agent has been killed."""
    reply: Reply = parse_reply(body)
    if reply.get("success") is False:
        raise from_reply(reply)
    return reply


def _given(fields: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


async def _open(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, path)
        check_owner(sock, path)
        return await asyncio.open_unix_connection(sock=sock)
    except OSError as error:
        sock.close()
        raise connection_error(path, error) from None
    except BaseException:
        sock.close()
        raise


async def _exchange_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(frame(0, Op.HELLO, body))
    op, reply = await _read_frame(reader)
    if op != Op.HELLO:
        raise ConnectionFailed(f"the kernel refused: {error_text(reply)}")
    _check(reply)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    magic, _, op, length = HEADER.unpack(await reader.readexactly(HEADER.size))
    if magic != MAGIC:
        raise ConnectionFailed("what answers there is no AgentOS kernel")
    return op, await reader.readexactly(length)


async def _read_frames(reader: asyncio.StreamReader, path: str) -> AsyncGenerator[tuple[int, bytes]]:
    try:
        op = int(Op.CHUNK)
        while op == Op.CHUNK:
            op, body = await _read_frame(reader)
            yield op, body
    except asyncio.IncompleteReadError:
        raise ConnectionFailed(f"the connection to the kernel at {path} broke: closed by the kernel") from None


__all__: Sequence[str] = ("KernelConnection",)
