"""HTTP/1.1 server on a listening socket, with hypercorn's protocol: limits connections and isolates their errors.

Hypercorn's own server is for trusted clients. It accepts every connection, lets an error in one connection end all,
shields what it sends from our cancellation, and switches to HTTP/2, where a connection may outlive its client. So only
its protocol is used; sockets are handled here.
"""

import contextlib
import logging
import math
import socket

import h11
import trio
from attrs import define, evolve, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, ConnectionState, Scope

from agentos.kernel.caller import MAX_CONNECTIONS, Allowance, Caller
from agentos.kernel.listener import ConnectionLimit

from .accept import accept

log = logging.getLogger(__name__)

IDLE_TIMEOUT = 10.0  # seconds to the next request, or to its last header; longer than clients keep unused connections
LINGER_TIMEOUT = (
    2.0  # seconds in which further input is read and dropped; otherwise the client may not see the response
)
READ_SIZE = 64 << 10
MAX_MESSAGE = 64 << 10  # bytes of one message on a WebSocket; a larger one closes it
SERVICE_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError)


def with_own_allowance(caller: Caller) -> Caller:
    """The caller with a separate allowance for this port, in addition to that for the kernel's socket."""
    return evolve(caller, allowance=Allowance())


@define(eq=False)
class HTTPListener:
    """Serves ``caller``. With all places taken, a new client gets that of the connection that has sent no request for
    the longest time; if all are busy with one, it waits.
    """

    listener: socket.socket
    connection_limit: ConnectionLimit
    caller: Caller
    app: ASGIFramework
    _slots: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_CONNECTIONS))
    _idle: dict["HTTPConnection", None] = field(factory=dict)  # the one that waits longest for a request is the first

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        async with trio.open_nursery() as nursery:
            while True:
                if not self._slots.value:
                    await trio.lowlevel.wait_readable(self.listener)
                    if not self._slots.value and self._idle:
                        next(iter(self._idle)).close()
                await self._slots.acquire()
                stream = None
                while stream is None:
                    stream = await accept(listener)
                nursery.start_soon(self._receive, stream)

    async def _receive(self, stream: trio.SocketStream) -> None:
        full = self.connection_limit.describe_full(self.caller)
        self.connection_limit.connections += 1
        try:
            if full is None:
                connection = HTTPConnection(stream, self._answer, self._idle)
                try:
                    await connection.run()
                finally:
                    self._idle.pop(connection, None)
            else:
                await stream.send_all(SERVICE_UNAVAILABLE)
        except* DISCONNECTED:
            pass
        except* Exception:  # most probably hypercorn failed on malformed input
            log.debug("an HTTP connection of %s ended by an error", self.caller.name, exc_info=True)
        finally:
            self.connection_limit.connections -= 1
            self._slots.release()
            stream.socket.close()

    async def _answer(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the app; if all places are taken, close the connection after the response."""

        async def send_event(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start" and not self._slots.value:
                event["headers"] = [*event["headers"], (b"connection", b"close")]
            await send(event)

        await self.app(scope, receive, send_event)


class HTTP1(H11Protocol):
    """Requests to switch to another protocol are answered in HTTP/1.1, as HTTP allows."""

    async def _check_protocol(self, event: h11.Request) -> None:
        pass


@define(eq=False)
class HTTPConnection:
    """Passes data between a client and hypercorn. It is in ``idle`` while it waits for a request."""

    _stream: trio.SocketStream
    _app: ASGIFramework
    _idle: dict["HTTPConnection", None]
    _response_sent: bool = False  # our side has sent everything
    _read_timeout: trio.CancelScope = field(factory=trio.CancelScope)
    _send_lock: trio.Lock = field(factory=trio.Lock)

    async def run(self) -> None:
        """Return when either side has disconnected."""
        config = Config()
        config.errorlog = config.accesslog = None
        config.include_server_header = False
        config.websocket_max_message_size = MAX_MESSAGE
        app, context, state = ASGIWrapper(self._app), WorkerContext(None), ConnectionState({})
        async with TaskGroup() as tasks:
            protocol = HTTP1(app, config, context, tasks, state, False, None, None, self._handle_event)
            self._set_idle(True)
            with self._read_timeout:
                while data := await self._read():
                    if not self._response_sent:
                        await protocol.handle(RawData(data))
            await protocol.handle(Closed())

    def close(self) -> None:
        """End a connection that waits for a request."""
        self._idle.pop(self, None)
        self._read_timeout.cancel()

    async def _handle_event(self, event: Event) -> None:
        """Handle an event of hypercorn."""
        if isinstance(event, RawData):
            with contextlib.suppress(*DISCONNECTED):  # the reader notices that too
                async with self._send_lock:
                    await self._stream.send_all(event.data)
        elif isinstance(event, Updated):
            self._set_idle(event.idle)
        elif isinstance(event, Closed):
            self._response_sent = True
            self._set_timeout(LINGER_TIMEOUT)
            with contextlib.suppress(*DISCONNECTED):
                async with self._send_lock:
                    await self._stream.send_eof()

    def _set_idle(self, idle: bool) -> None:
        self._idle.pop(self, None)
        if idle:
            self._idle[self] = None
        self._set_timeout(IDLE_TIMEOUT if idle else math.inf)

    def _set_timeout(self, seconds: float) -> None:
        self._read_timeout.deadline = trio.current_time() + seconds

    async def _read(self) -> bytes:
        """The next data; empty if the client has disconnected."""
        try:
            return bytes(await self._stream.receive_some(READ_SIZE))
        except DISCONNECTED:
            return b""
