"""The connections of one caller's HTTP requests: httpcore2 speaks HTTP/1.1 on sockets that another function opens.

httpcore2 is what httpx2 sends with. httpx2 itself would parse the URL a second time, keep cookies and inflate bodies of
any size. Importing httpcore2 takes 70 ms: import this module in a thread.
"""

import logging
import select
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import h11
import httpcore2
import trio
from attrs import define

from agentos_sdk.errors import Unavailable

from .egress import JudgeAddress
from .request import MAX_HEAD_BYTES, MAX_HEADERS, Headers, Hop, Unreadable

logging.getLogger("httpcore2").setLevel(logging.WARNING)  # below this level it logs requests and headers

READ_BYTES = 32 << 10
HEAD_READ_BYTES = 4 << 10  # all interim replies and headers in one read are parsed without a pause
MAX_UNPARSED_BYTES = 8 << 10  # of a body: a chunk's size, or trailers, which h11 parses without a pause
WRITE_BYTES = 64 << 10  # encrypted without a pause
KEPT_CONNECTIONS = 8  # idle ones of one caller
KEPT_SECONDS = 15.0
MAX_CONNECTIONS = 64  # httpcore2 forgets no connection whose request was cancelled before it was opened
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})  # an empty body is announced, too
BODILESS = frozenset({204, 304})  # statuses whose response ends with its head

Connect = Callable[[str, int, JudgeAddress], Awaitable[trio.SocketStream]]

_judge: ContextVar[JudgeAddress] = ContextVar("judge")  # of the request whose task opens a connection


@define
class Head:
    """What has been read while the head of a response was awaited, interim responses included."""

    size: int = 0
    lines: int = 0


class Stream(httpcore2.AsyncNetworkStream):
    """A connection, encrypted or not. Its errors are httpcore2's."""

    def __init__(self, stream: trio.abc.Stream, sock: trio.socket.SocketType) -> None:
        self._stream, self._socket = stream, sock
        self._head: Head | None = None  # of the response that is awaited
        self._parser: h11.Connection | None = None  # of the body that is awaited

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head is not None and self._head.lines > MAX_HEADERS:  # before more of them is parsed at once
            raise Unreadable(f"more than {MAX_HEADERS} headers")
        unparsed = len(self._parser.trailing_data[0]) if self._parser is not None else 0
        if unparsed > MAX_UNPARSED_BYTES:
            raise Unreadable(f"more than {MAX_UNPARSED_BYTES >> 10} KiB of trailers, or of a chunk's size")
        few = self._head is not None or unparsed
        try:
            data = bytes(await self._stream.receive_some(HEAD_READ_BYTES if few else READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError(describe_cause(error)) from None
        if self._head is not None:
            self._head.size += len(data)
            self._head.lines += data.count(b"\n")
            if self._head.size > MAX_HEAD_BYTES:
                raise Unreadable(f"more than {MAX_HEAD_BYTES >> 10} KiB of headers")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._head, self._parser = Head(), None
        view = memoryview(buffer)
        try:
            for at in range(0, len(view), WRITE_BYTES):
                await self._stream.send_all(view[at : at + WRITE_BYTES])
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError(describe_cause(error)) from None

    def end_head(self, parser: h11.Connection) -> None:
        """Take what follows as the body, which ``parser`` parses."""
        self._head, self._parser = None, parser

    async def aclose(self) -> None:
        """Close the socket at once, also below TLS: the peer need not agree."""
        self._socket.close()

    @property
    def has_unread(self) -> bool:
        """Whether TLS holds bytes that have left the socket: they were sent before they were asked for."""
        tls = self._stream
        return isinstance(tls, trio.SSLStream) and bool(tls.pending() or tls._incoming.pending)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "Stream":
        tls = trio.SSLStream(self._stream, ssl_context, server_hostname=server_hostname, https_compatible=True)
        try:
            await tls.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._socket.close()
            raise httpcore2.ConnectError(f"TLS: {describe_cause(error)}") from None
        except BaseException:
            self._socket.close()
            raise
        return Stream(tls, self._socket)

    def get_extra_info(self, info: str) -> Any:
        """``is_readable``: an idle connection is when its server, or its pool, has closed it."""
        if info != "is_readable":
            return None
        if self._socket.fileno() < 0 or self.has_unread:
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))


class Exchange:
    """A response whose head has arrived, and the parts of its body as they arrive."""

    def __init__(self, response: httpcore2.Response, method: str) -> None:
        self._response, self._method = response, method
        self._parts = aiter(response.stream)  # type: ignore[arg-type]  # an asynchronous pool's are
        self._at_end = False
        self.status = response.status
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
        self._stream: Stream = response.extensions["network_stream"]
        # What h11 has left to parse httpcore2 tells in no public way.
        self._parser: h11.Connection = response.stream._stream._connection._h11_state  # type: ignore[union-attr]
        self._stream.end_head(self._parser)

    def check(self) -> None:
        """Raise :class:`Unreadable` for a head that can't be passed on."""
        if len(self.headers) > MAX_HEADERS:
            raise Unreadable(f"more than {MAX_HEADERS} headers")

    async def next_part(self) -> bytes:
        """The next bytes of the body as they were sent; none at its end."""
        async for part in self._parts:
            return part
        self._at_end = True
        return b""

    async def aclose(self) -> None:
        """Keep the connection if the body is at its end and nothing behind it, otherwise close it.

        Closing the socket makes httpcore2's generators, which wait for the body, end with an error.
        """
        with trio.CancelScope(shield=True):
            if not self._at_end or self._may_have_more:
                await self._stream.aclose()
            with suppress(httpcore2.NetworkError, httpcore2.ProtocolError):
                async for _ in self._parts:  # what has been read of it
                    await trio.lowlevel.checkpoint()
            await self._response.aclose()

    @property
    def _may_have_more(self) -> bool:
        """Whether bytes behind the response would be read as the next one: sent already, or likely to come.

        A body that a response can't have, and one of two lengths, may arrive at any time.
        """
        names = {name.lower() for name, _ in self.headers}
        ends_doubtfully = (
            self._method == "HEAD" or self.status in BODILESS or {"content-length", "transfer-encoding"} <= names
        )
        # httpcore2 parses what h11 has left as the next response.
        return ends_doubtfully or bool(self._parser.trailing_data[0]) or self._stream.has_unread


class Pool(httpcore2.AsyncNetworkBackend):
    """The connections of one caller under one version of its rules; ``connect`` opens them.

    A retired pool is given no further requests. Its connections are closed when the last of its requests is done.
    """

    def __init__(self, connect: Connect, context: ssl.SSLContext) -> None:
        self._connect = connect
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,  # the number of requests is limited
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEPT_SECONDS,
            network_backend=self,
        )
        self._sockets: WeakSet[trio.socket.SocketType] = WeakSet()
        self._requests = 0
        self._retired = False
        self._used_at = trio.current_time()

    @property
    def is_usable(self) -> bool:
        return not self._retired and len(self._pool.connections) < MAX_CONNECTIONS

    @property
    def is_idle(self) -> bool:
        """Whether its connections are too old to be used again."""
        return not self._requests and trio.current_time() - self._used_at > KEPT_SECONDS

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        stream = await self._connect(host, port, _judge.get())
        self._sockets.add(stream.socket)
        return Stream(stream, stream.socket)

    @asynccontextmanager
    async def send(self, hop: Hop, headers: Headers, body: bytes, judge: JudgeAddress) -> AsyncIterator[Exchange]:
        """Send a request and receive the head of the response. Raises ``Unavailable``, also for the body's errors.

        ``judge`` judges the addresses if a connection has to be opened.
        """
        to = hop.destination
        url = httpcore2.URL(scheme=to.scheme, host=to.host, port=to.port, target=hop.target)
        framing = [("Content-Length", str(len(body)))] if body or to.method in WITH_BODY else []
        fields = [("Host", hop.host), *headers, *framing]
        request = httpcore2.Request(to.method or "GET", url, headers=fields, content=body)
        self._requests += 1
        _judge.set(judge)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # it would leave a connection in the pool, never opened
            exchange = Exchange(await self._pool.handle_async_request(request), to.method or "GET")
            try:
                exchange.check()
                yield exchange
            finally:
                await exchange.aclose()
        except (httpcore2.NetworkError, Unreadable) as error:
            raise Unavailable(f"{to.host} port {to.port}: {error}") from None
        except httpcore2.ProtocolError as error:
            what = str(error).partition(":")[0]  # behind it h11 quotes what the server sent, which may hold a secret
            raise Unavailable(f"{to.host} port {to.port}: {what}") from None
        finally:
            self._requests -= 1
            self._used_at = trio.current_time()
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close the connections now, or when the last request is done."""
        self._retired = True
        if not self._requests:
            for sock in self._sockets:
                sock.close()


def describe_cause(error: Exception) -> str:
    """What the operating system or TLS said."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate isn't valid: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or "broken").lower().replace("_", " ")
    if isinstance(cause, OSError):
        return (cause.strerror or "broken").lower()
    return "the connection was closed"
