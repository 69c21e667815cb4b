"""HTTP/1.1 server on a listening socket, with hypercorn's protocol: limits connections and isolates their errors.

Hypercorn's own server is for trusted clients. It accepts every connection, lets an error in one connection end all,
shields what it sends from our cancellation, and switches to HTTP/2, where a connection may outlive its client. So only
its protocol is used; sockets are handled here.
"""

import contextlib
import logging
import math
import socket
import time

import h11
import trio
from attrs import define, evolve, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
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
WEBSOCKET_READ_SIZE = 4 << 10  # may be hundreds of frames, which are parsed before any other task runs
WEBSOCKET_BUFFER = 256 << 10  # bytes that Linux keeps of what the client doesn't read
MAX_CPU_SHARE = 0.1  # of one core, for the input of one WebSocket
MAX_PAUSE = 0.1  # seconds without reading it
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

    A client that doesn't take what is sent for ``send_timeout`` seconds is disconnected.
    """

    listener: socket.socket
    connection_limit: ConnectionLimit
    caller: Caller
    app: ASGIFramework
    send_timeout: float = math.inf
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
                connection = HTTPConnection(stream, self._answer, self._idle, self.send_timeout)
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
    """Requests to switch to another protocol than WebSocket are answered in HTTP/1.1, as HTTP allows."""

    async def _check_protocol(self, event: h11.Request) -> None:
        pass

    async def _create_stream(self, request: h11.Request) -> None:
        """Without extensions of WebSocket: 64 KiB of deflate become 64 MiB before hypercorn looks at their size."""
        headers = [(name, value) for name, value in request.headers if name != b"sec-websocket-extensions"]
        if len(headers) < len(request.headers):
            request = h11.Request(
                method=request.method, headers=headers, target=request.target, http_version=request.http_version
            )
        await super()._create_stream(request)

    @property
    def is_too_large(self) -> bool:
        """Whether a WebSocket sends too large a message: hypercorn closes it, but goes on to collect the message."""
        return isinstance(self.stream, WSStream) and self.stream.buffer.length > MAX_MESSAGE


@define(eq=False)
class HTTPConnection:
    """Passes data between a client and hypercorn. It is in ``idle`` while it waits for a request."""

    _stream: trio.SocketStream
    _app: ASGIFramework
    _idle: dict["HTTPConnection", None]
    _send_timeout: float
    _response_sent: bool = False  # our side has sent everything
    _is_websocket: bool = False
    _read_timeout: trio.CancelScope = field(factory=trio.CancelScope)
    _send_lock: trio.Lock = field(factory=trio.Lock)

    async def run(self) -> None:
        """Return when either side has disconnected."""
        config = Config()
        config.errorlog = config.accesslog = None
        config.include_server_header = False
        config.websocket_max_message_size = MAX_MESSAGE
        app, context, state = ASGIWrapper(self._run_app), WorkerContext(None), ConnectionState({})
        async with TaskGroup() as tasks:
            protocol = HTTP1(app, config, context, tasks, state, False, None, None, self._handle_event)
            self._set_idle(True)
            with self._read_timeout:
                while data := await self._read():
                    if not self._response_sent:
                        await self._take(protocol, data)
            if self._is_websocket:
                self._stream.socket.close()  # so that what the client doesn't read holds up nothing
            await protocol.handle(Closed())

    async def _take(self, protocol: HTTP1, data: bytes) -> None:
        """Pass input to hypercorn; a WebSocket's no faster than its share of the CPU lasts, as frames may be empty."""
        before = time.thread_time()
        await protocol.handle(RawData(data))
        if protocol.is_too_large:
            self._response_sent = True
            self._set_timeout(LINGER_TIMEOUT)
        elif self._is_websocket:
            await trio.sleep(min(MAX_PAUSE, (time.thread_time() - before) / MAX_CPU_SHARE))

    async def _run_app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        self._is_websocket = True
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WEBSOCKET_BUFFER)
        try:
            await self._app(scope, receive, send)
        finally:
            self._set_timeout(LINGER_TIMEOUT)

    def close(self) -> None:
        """End a connection that waits for a request."""
        self._idle.pop(self, None)
        self._read_timeout.cancel()

    async def _handle_event(self, event: Event) -> None:
        """Handle an event of hypercorn."""
        if isinstance(event, RawData):
            with contextlib.suppress(*DISCONNECTED):  # the reader notices that too
                async with self._send_lock:
                    with trio.move_on_after(self._send_timeout) as sending:
                        await self._stream.send_all(event.data)
                    if sending.cancelled_caught:
                        self._stream.socket.close()
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
            return bytes(await self._stream.receive_some(WEBSOCKET_READ_SIZE if self._is_websocket else READ_SIZE))
        except DISCONNECTED:
            return b""
