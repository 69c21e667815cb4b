"""The MCP server over streamable HTTP, for clients with a token."""

import json
import logging
import math
import socket
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentos.http.places import Places
from agentos.http.users import find_uid
from agentos.threads import run_in_thread
from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry
from agentos.userland.mcp.revocation import wait_revoked
from agentos.userland.mcp.server import build_server

from .http_guard import LOOPBACK_NAMES, PATH, Guard
from .session import APPROVAL_TIMEOUT, open_session
from .state_key import load_state_key

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
MAX_SESSIONS = 64  # of one client, of MCP's era with sessions
MAX_OPEN_REQUESTS = 64  # of one client
MAX_BRACKETS = 100_000  # "[" and "{" in a body: to parse more holds up all clients, for 4 MiB of them 1 s
SESSION = b"mcp-session-id"  # a header of MCP's era with sessions, but for a session's first request
BODY_TIMEOUT = 60.0  # seconds in which the body of a request has to arrive
SEND_TIMEOUT = 60.0  # seconds in which a client has to take what is sent
BACKLOG = 128
NO_CHECKS = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # Guard has checked Host and Origin


class HTTPError(Exception):
    """The server can't listen; the text says why and what to do."""


@frozen
class HTTPOptions:
    """Where to listen. ``names``: further host names of this server, of a reverse proxy or a container's host.

    ``insecure``: also on another address than the loopback's, though there is no TLS.
    """

    host: str
    port: int
    names: Sequence[str] = ()
    insecure: bool = False


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, with an IPv6 address in brackets. Raises :class:`HTTPError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise HTTPError(f"--http: expected HOST:PORT such as 127.0.0.1:8766, got {text!r}")
    return host.strip("[]"), int(port)


def open_listener(options: HTTPOptions) -> socket.socket:
    """The listening socket. Raises :class:`HTTPError`."""
    try:
        family, *_, (host, *_) = socket.getaddrinfo(options.host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise HTTPError(f"--http: {options.host!r} is no address of this host: {error.strerror}") from None
    if not ip_address(host).is_loopback and not options.insecure:
        raise HTTPError(
            f"--http: {options.host} is not a loopback address, and this server has no TLS: tokens could be read on the"
            " network. Put a reverse proxy with TLS before it, or say --insecure-listen"
        )
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, options.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise HTTPError(f"--http: can't listen on {options.host}:{options.port}: {error.strerror}") from None
    return listener


@define(eq=False)
class ClientApp:
    """The ASGI application of one client; :meth:`end` ends its open requests."""

    app: ASGIApp
    _open: set[trio.CancelScope] = field(factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._open) >= MAX_OPEN_REQUESTS:
            why = f"this client has {MAX_OPEN_REQUESTS} open requests already\n"
            await PlainTextResponse(why, 429, {"retry-after": "1"})(scope, receive, send)
            return
        in_session = any(name == SESSION for name, _ in scope["headers"])
        brackets, received, answered, gone = 0, bytearray(), False, False

        async def receive_counted() -> Message:
            nonlocal brackets, received, gone
            message = await receive()
            gone = message["type"] == "http.disconnect"
            body = message.get("body", b"")
            if gone or not message.get("more_body", False):
                request.deadline = math.inf
            if in_session:
                received += body
            brackets += body.count(b"[") + body.count(b"{")
            if brackets > MAX_BRACKETS:
                request.cancel()
                await trio.lowlevel.checkpoint()
            return message

        async def send_noted(message: Message) -> None:
            nonlocal answered
            await send(message)
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        with trio.move_on_after(BODY_TIMEOUT if scope["method"] == "POST" else math.inf) as request:
            self._open.add(request)
            try:
                await self.app(scope, receive_counted, send_noted)
            finally:
                self._open.discard(request)
        if in_session and gone and not answered:
            await self._withdraw(scope, bytes(received))
        closing = {"connection": "close"}  # the rest of the body is never read
        if brackets > MAX_BRACKETS:
            why = f"the body has more than {MAX_BRACKETS:,} opening brackets and braces\n"
            await PlainTextResponse(why, 413, closing)(scope, receive, send)
        elif request.cancelled_caught and request.deadline <= trio.current_time():
            why = f"the body did not arrive within {BODY_TIMEOUT:g} s\n"
            await PlainTextResponse(why, 408, closing)(scope, receive, send)

    async def _withdraw(self, scope: Scope, body: bytes) -> None:
        """Cancel the request of a client that has disconnected: nothing keeps an answer for it.

        In MCP's era with sessions a request belongs to its session, so the end of its connection doesn't cancel it.
        """
        try:
            message = json.loads(body)
            number, _ = message["id"], message["method"]
        except (ValueError, RecursionError, TypeError, LookupError):
            return  # not a request
        params = {"requestId": number, "reason": "the client has disconnected"}
        notice = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        messages: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": notice}]

        async def receive() -> Message:
            return messages.pop() if len(messages) > 1 else messages[0]

        async def drop(message: Message) -> None:
            pass

        length = (b"content-length", str(len(notice)).encode())
        await self.app({**scope, "headers": [*headers, length]}, receive, drop)

    def end(self) -> None:
        for request in self._open:
            request.cancel()


@define(eq=False)
class Served:
    """An MCP server for each client that has sent a request, so that what one is told never reaches another.

    It ends when the client's entry is revoked, and with it all that the client has open.
    """

    socket_path: str
    state_dir: Path
    state_key: bytes
    approval_timeout: float
    _nursery: trio.Nursery
    _apps: dict[str, tuple[ClientEntry, ClientApp]] = field(factory=dict)  # by client
    _starting: trio.Lock = field(factory=trio.Lock)

    async def find_app(self, entry: ClientEntry) -> ASGIApp:
        """The application of a client."""
        async with self._starting:
            known = self._apps.get(entry.name)
            if known is None or known[0] != entry:  # else one that was revoked is about to end
                known = self._apps[entry.name] = entry, await self._nursery.start(self._run, entry)
            return known[1]

    async def _run(self, entry: ClientEntry, task_status: trio.TaskStatus[ClientApp]) -> None:
        """Run a client's server until its entry is revoked. An error ends this client's server alone."""
        app: ClientApp | None = None
        is_current = partial(clients.is_current, self.state_dir, entry)
        try:
            async with open_session(entry, self.socket_path, is_current, self.approval_timeout) as session:
                server = build_server(lambda: session, self.state_key)
                app = ClientApp(
                    server.streamable_http_app(
                        streamable_http_path=PATH, max_sessions=MAX_SESSIONS, transport_security=NO_CHECKS
                    )
                )
                async with server.session_manager.run():
                    task_status.started(app)
                    await wait_revoked(self.state_dir, entry)
        except Exception:
            if app is None:
                raise  # to the request that would have been the first
            log.exception("the server of %s ended by an error", entry.guest)
        finally:
            if app is not None:
                app.end()
                if self._apps.get(entry.name) == (entry, app):
                    del self._apps[entry.name]


async def serve(
    listener: socket.socket,
    options: HTTPOptions,
    socket_path: str,
    state_dir: Path,
    announce: Callable[[str], None],
    approval_timeout: float = APPROVAL_TIMEOUT,
) -> None:
    """Serve MCP on a listening socket until cancelled; ``announce`` is called with the URL.

    ``approval_timeout``: seconds that a call waits for a person.
    """
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    names = [*LOOPBACK_NAMES, address, *(name.lower() for name in options.names)]
    async with trio.open_nursery() as nursery:
        key = await run_in_thread(load_state_key, state_dir)
        served = Served(socket_path, state_dir, key, approval_timeout, nursery)
        guard: Any = Guard(served.find_app, state_dir, names)
        announce(f"http://{address}:{port}{PATH}")
        await Places(listener, guard, MAX_CONNECTIONS, SEND_TIMEOUT, find_uid).serve()
