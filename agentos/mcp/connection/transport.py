"""The transport between the SDK's client and a server's standard streams: JSON-RPC lines, all of it bounded.

A line has at most 4 MiB, at most 16 requests of the server are open, and messages are read at a limited pace: a server
that floods waits for its own pipe.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import mcp_types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field
from mcp.shared.message import SessionMessage

from agentos.mcp.errors import BadServer
from agentos.mcp.pace import Pace
from agentos.mcp.validation import validate
from agentos.threads import run_in_thread

from .messages import Parsed, parse_line, quote_line

MAX_LINE_BYTES: Final = 4 << 20
MAX_OPEN_REQUESTS: Final = 16  # of a server
MAX_QUEUED: Final = 96  # messages to a server: a Session's 32 calls, the end of each, and replies
INLINE_BYTES: Final = 4 << 10  # a longer line is parsed in a thread
READ_BYTES: Final = 64 << 10
REFUSED: Final = -32000  # JSON-RPC's range for errors of an implementation

Incoming = SessionMessage | Exception


@define(eq=False)
class Lines:
    """The lines of a stream."""

    _stream: trio.SocketStream
    _rest: bytearray = field(factory=bytearray)
    _searched: int = 0  # bytes of ``_rest`` that have no line break

    async def receive(self) -> bytes | None:
        """The next line, without its line break; None at the end. Raises :class:`BadServer` if it is too long."""
        while (end := self._rest.find(b"\n", self._searched)) < 0:
            self._searched = len(self._rest)
            if len(self._rest) > MAX_LINE_BYTES:
                raise BadServer(f"it sent a line of more than {MAX_LINE_BYTES >> 20} MiB")
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                return None
            self._rest += data
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        self._searched = 0
        return line


@define(eq=False)
class LineTransport:
    """``secrets`` are removed from all that the server sends. ``report`` gets lines of its output that are no messages.

    ``over`` is set when no message can come any more; ``fault`` then says why, None at the end of the output.
    """

    stream: trio.SocketStream
    secrets: Sequence[bytes]
    report: Callable[[str], None]
    over: trio.Event = field(factory=trio.Event)
    fault: str | None = None
    _open: set[str | int] = field(factory=set)  # requests of the server that are being answered
    _sending: trio.Lock = field(factory=trio.Lock)

    @asynccontextmanager
    async def connect(
        self,
    ) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]]:
        """The two streams that the SDK's client takes.

        The one to it has no buffer, so that the server waits for it. The other one has: the SDK waits up to 5 s until
        it has sent that a call was cancelled, though the server may have stopped to read.
        """
        to_client, incoming = anyio.create_memory_object_stream[Incoming](0)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](MAX_QUEUED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, to_client)
            nursery.start_soon(self._write, from_client)
            try:
                yield incoming, outgoing
            finally:
                nursery.cancel_scope.cancel()

    async def _read(self, to_client: MemoryObjectSendStream[Incoming]) -> None:
        pace, lines = Pace(), Lines(self.stream)
        async with to_client:
            try:
                while (line := await lines.receive()) is not None:
                    await pace.wait(len(line))
                    await self._take(line, to_client)
            except BadServer as error:
                self.fault = str(error)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the program has ended
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the client has ended
            finally:
                self.over.set()

    async def _take(self, line: bytes, to_client: MemoryObjectSendStream[Incoming]) -> None:
        if len(line) <= INLINE_BYTES:
            found = self._parse(line)
        else:
            found = await run_in_thread(self._parse, line)
        if isinstance(found, str):
            self.report(found)
            return
        if found is None:
            return
        parsed, message = found
        if parsed.withdrawn is not None:
            self._open.discard(parsed.withdrawn)
        if parsed.request is not None:
            refusal = parsed.refusal
            if parsed.request in self._open or len(self._open) >= MAX_OPEN_REQUESTS:
                refusal = f"{MAX_OPEN_REQUESTS} requests are open, or one with this id is"
            if refusal is not None:
                await self._refuse(parsed.request, refusal)
                return
            self._open.add(parsed.request)
        await to_client.send(SessionMessage(message))

    def _parse(self, line: bytes) -> tuple[Parsed, Any] | str | None:
        parsed = parse_line(line, self.secrets)
        if not isinstance(parsed, Parsed):
            return parsed
        return validate(parsed) or quote_line(line)

    async def _refuse(self, number: str | int, why: str) -> None:
        error = mcp_types.ErrorData(code=REFUSED, message=why)
        await self._send(mcp_types.JSONRPCError(jsonrpc="2.0", id=number, error=error))

    async def _write(self, from_client: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with from_client:
            try:
                async for item in from_client:
                    if isinstance(item.message, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError):
                        self._open.discard(item.message.id if item.message.id is not None else "")
                    await self._send(item.message)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.over.set()

    async def _send(self, message: mcp_types.JSONRPCMessage) -> None:
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        async with self._sending:
            await self.stream.send_all(data + b"\n")
