"""One HTTP/1.1 connection, with hypercorn's protocol and limits of our own; knows nothing of the kernel.

Hypercorn's own server is for trusted clients. It accepts every connection, lets an error in one connection end all,
shields what it sends from our cancellation, and switches to HTTP/2, where a connection may outlive its client. So only
its protocol is used; sockets are handled here.
"""

import contextlib
import fcntl
import math
import socket
import termios
import time

import h11
import trio
from attrs import define, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, ConnectionState, Scope

from .hang_up import unless_gone

IDLE_TIMEOUT = 10.0  # seconds to the next request, or to its last header; longer than clients keep unused connections
LINGER_TIMEOUT = (
    2.0  # seconds in which further input is read and dropped; otherwise the client may not see the response
)
HEAD_READ_SIZE = 4 << 10  # hypercorn refuses a head of more than 16 KiB unless one read has all of it
READ_SIZE = 16 << 10  # may be 3000 trailers, which are parsed without a pause
MAX_MESSAGE = 64 << 10  # bytes of one message on a WebSocket; a larger one closes it
WEBSOCKET_READ_SIZE = 512  # may be 85 frames, which are handled without a pause
WEBSOCKET_BUFFER = 256 << 10  # bytes that Linux keeps of what the client doesn't read
MAX_CPU_SHARE = 0.1  # of one core, for the input of one WebSocket
MAX_PAUSE = 0.1  # seconds without reading it
KEEP = "agentos.keep"
DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError)


class HTTP1(H11Protocol):
    """Requests to switch to another protocol than WebSocket are answered in HTTP/1.1, as HTTP allows."""

    async def _check_protocol(self, event: h11.Request) -> None:
        pass

    async def _create_stream(self, request: h11.Request) -> None:
        """Without extensions of WebSocket: 64 KiB of deflate become 64 MiB before hypercorn looks at their size.

        A request whose end a proxy in between might see elsewhere gets 400, and the connection ends (RFC 9112, 6.1).
        """
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
            await self._send_error_response(400)
            await self.send(Closed())
            return
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


class NextRequest(EventWrapper):
    """Hypercorn's event for the turn of a request that a client sent before it had the response to the last one.

    Until then nothing is read. Whatever waits for it gets ``BrokenResourceError`` if the client disconnects.
    """

    def __init__(self, client: trio.SocketStream) -> None:
        super().__init__()
        self._client = client

    async def wait(self) -> None:
        await unless_gone(self._client, super().wait)


@define(eq=False)
class HTTPConnection:
    """Passes data between a client and hypercorn."""

    _stream: trio.SocketStream
    _app: ASGIFramework
    _send_timeout: float
    waits_since: float = field(factory=trio.current_time)  # for its first request, or since its last response
    _is_idle: bool = False  # it waits for a request
    _response_sent: bool = False  # our side has sent everything
    _is_websocket: bool = False
    _is_gone: bool = False  # the client; what is cancelled while it is handled never tells the application of its end
    is_kept: bool = False  # the application has said so, by ``keep`` in the scope's extensions
    scope: trio.CancelScope = field(factory=trio.CancelScope)  # of all that is done for it
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
            protocol.can_read = NextRequest(self._stream)
            self._set_idle(True)
            with self._read_timeout, contextlib.suppress(*DISCONNECTED):
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
            await self._app(scope, receive, draining(receive, send))
            return
        self._is_websocket = True
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WEBSOCKET_BUFFER)
        scope["extensions"][KEEP] = {"keep": self._keep}
        try:
            await self._app(scope, receive, send)
        finally:
            self._set_timeout(LINGER_TIMEOUT)

    def _keep(self) -> None:
        self.is_kept = True

    @property
    def gives_way(self) -> bool:
        """Whether it waits for a request that isn't there to be read, or is a WebSocket that isn't kept yet."""
        if self._is_idle:
            fd = self._stream.socket.fileno()
            return fd < 0 or not any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        return self._is_websocket and not self.is_kept

    async def _handle_event(self, event: Event) -> None:
        """Handle an event of hypercorn."""
        if isinstance(event, RawData):
            try:
                async with self._send_lock:
                    with trio.move_on_after(self._send_timeout) as sending:
                        await self._stream.send_all(event.data)
                    if sending.cancelled_caught:
                        self._stream.socket.close()
            except DISCONNECTED:  # the reader would take all first that the client had sent, at the pace of its limits
                self._is_gone = True
        elif isinstance(event, Updated):
            self._set_idle(event.idle)
        elif isinstance(event, Closed):
            self._response_sent = True
            self._set_timeout(LINGER_TIMEOUT)
            with contextlib.suppress(*DISCONNECTED):
                async with self._send_lock:
                    await self._stream.send_eof()

    def _set_idle(self, idle: bool) -> None:
        self._is_idle = idle
        if idle:
            self.waits_since = trio.current_time()
        self._set_timeout(IDLE_TIMEOUT if idle else math.inf)

    def _set_timeout(self, seconds: float) -> None:
        self._read_timeout.deadline = trio.current_time() + seconds

    @property
    def _read_size(self) -> int:
        if self._is_websocket:
            return WEBSOCKET_READ_SIZE
        return HEAD_READ_SIZE if self._is_idle else READ_SIZE

    async def _read(self) -> bytes:
        """The next data; empty if the client has disconnected."""
        if self._is_gone:
            return b""
        try:
            return bytes(await self._stream.receive_some(self._read_size))
        except DISCONNECTED:
            return b""


def draining(receive: ASGIReceiveCallable, send: ASGISendCallable) -> ASGISendCallable:
    """``send`` that reads and drops the rest of the request while it ends the response.

    Hypercorn tells the app of the end through the queue of the request's body. Where an app has answered without
    reading a large body that queue is full, and both would wait for each other for ever.
    """

    async def drop() -> None:
        while True:
            await receive()

    async def send_event(event: ASGISendEvent) -> None:
        if event["type"] != "http.response.body" or event.get("more_body"):
            await send(event)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drop)
            await send(event)
            nursery.cancel_scope.cancel()

    return send_event
