"""The MCP server over HTTP, in the test's own event loop, on a real socket."""

from __future__ import annotations

import gc
import subprocess
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import trio
from attrs import frozen

from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry
from tests.support.clients import httpx2, mcp
from tests.support.kernel import Kernel
from tests.support.runs.forked import Commands
from tests.support.wire import PATIENCE

# The SDK's client leaves what it has read of a stream to the garbage collector.
CLIENTS_GENERATORS = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp)[.]:ResourceWarning")


@asynccontextmanager
async def serving_http(
    socket_path: str, state_dir: Path, approval_timeout: float = 0, names: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    """The URL of a server, which ends with the block."""
    from agentos.userland.mcp.transports import http

    options = http.HTTPOptions("127.0.0.1", 0, names)
    async with trio.open_nursery() as nursery:
        with http.open_listener(options) as listener:
            send, receive = trio.open_memory_channel[str](1)
            nursery.start_soon(
                http.serve, listener, options, socket_path, state_dir, send.send_nowait, approval_timeout
            )
            yield await receive.receive()
            nursery.cancel_scope.cancel()


@contextmanager
def served_by_command(kernel: Kernel) -> Iterator[str]:
    """The URL of a server that ``agentos mcp --http`` runs in a process of its own."""
    words = ["mcp", "--http", "127.0.0.1:0", "--socket", kernel.socket, "--state-dir", str(kernel.state_dir)]
    with TemporaryDirectory() as place, closing(Commands(Path(place))) as commands:
        server = subprocess.Popen([str(commands.directory / "agentos"), *words], stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            assert "serving MCP at " in line, line + server.stderr.read()
            yield line.split()[-1]
        finally:
            server.terminate()
            server.wait()
            server.stderr.close()


def make_client(state_dir: Path, name: str, **rights: Any) -> str:
    """Make an entry, in place of one of this name; its token."""
    clients.revoke(state_dir, name)
    token, kept = clients.make_token(name)
    entry = ClientEntry(name, "http", 1000.0, token_sha256=kept, **(rights or {"level": "standard"}))
    clients.create(state_dir, entry)
    return token


@asynccontextmanager
async def with_token(token: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Sends requests with this token.

    The SDK's client leaves what it has read of a stream to the garbage collector, which warns of it: it runs here, so
    that no later test gets the warning.
    """
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE) as sender:
        try:
            yield sender
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()


class Http:
    """The server has a port, and the client a token."""

    kind: Literal["stdio", "http"] = "http"

    @asynccontextmanager
    async def serve(self, kernel: Kernel, entry: Any, approval_timeout: float = 0) -> AsyncIterator[Any]:
        from mcp.client.streamable_http import streamable_http_client

        rights = {"level": entry.level} if entry.permissions is None else {"permissions": entry.permissions}
        token = make_client(kernel.state_dir, entry.name, **rights)
        async with (
            serving_http(kernel.socket, kernel.state_dir, approval_timeout) as url,
            with_token(token) as sender,
        ):
            yield streamable_http_client(url, http_client=sender)


@asynccontextmanager
async def connected(url: str, token: str, mode: str = "auto", **options: Any) -> AsyncIterator[mcp.Client]:
    """An MCP client with this token."""
    from mcp.client.streamable_http import streamable_http_client

    async with (
        with_token(token) as sender,
        mcp.Client(streamable_http_client(url, http_client=sender), mode=mode, **options) as client,
    ):
        yield client


@frozen
class Relay:
    """Passes on what a client and a server send until ``scope`` is cancelled, which breaks all connections."""

    url: str
    scope: trio.CancelScope


@asynccontextmanager
async def broken_off(url: str) -> AsyncIterator[Relay]:
    """A relay before the server with this URL."""
    to = urlsplit(url)
    scope = trio.CancelScope()

    async def serve(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream(str(to.hostname), to.port or 0)
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(pass_on, client, server)
            await pass_on(server, client)
            nursery.cancel_scope.cancel()

    async def listen(listeners: list[trio.SocketListener]) -> None:
        with scope:
            await trio.serve_listeners(serve, listeners)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(listen, listeners)
        port = listeners[0].socket.getsockname()[1]
        yield Relay(to._replace(netloc=f"127.0.0.1:{port}").geturl(), scope)
        nursery.cancel_scope.cancel()


async def pass_on(source: trio.SocketStream, target: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for data in source:
            await target.send_all(data)
