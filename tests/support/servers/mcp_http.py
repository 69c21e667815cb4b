"""A real MCP server over streamable HTTP on loopback, by the official SDK, in a thread of the test's process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import trio
from attrs import define, field

from tests.support.clients import mcpserver
from tests.support.wire import PATIENCE


@define(eq=False)
class McpHttpServer:
    """``requests``: path and headers of each request, the names in lower case."""

    port: int = 0
    token: str | None = None
    requests: list[tuple[str, Mapping[str, str]]] = field(factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def wrap(self, app: Any) -> Callable[..., Awaitable[None]]:
        """The application behind a check of its bearer token, if it has one."""

        async def checked(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
                self.requests.append((scope["path"], headers))
                if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
                    head = [(b"www-authenticate", b'Bearer resource_metadata="http://127.0.0.1/x"')]
                    await send({"type": "http.response.start", "status": 401, "headers": head})
                    await send({"type": "http.response.body", "body": b""})
                    return
            await app(scope, receive, send)

        return checked


@contextlib.contextmanager
def mcp_http_server(server: mcpserver.MCPServer, token: str | None = None) -> Iterator[McpHttpServer]:
    """Serve it until the block is left; ``token``: requests without it are answered 401."""
    from hypercorn.config import Config
    from hypercorn.trio import serve

    listener = socket.create_server(("127.0.0.1", 0))
    found, box = McpHttpServer(listener.getsockname()[1], token), list[tuple[Any, trio.Event]]()
    ready = threading.Event()
    config = Config()
    config.bind, config.accesslog, config.errorlog = [f"fd://{listener.fileno()}"], None, None
    config.graceful_timeout = 0.1

    async def run() -> None:
        over = trio.Event()
        box.append((trio.lowlevel.current_trio_token(), over))
        async with trio.open_nursery() as nursery:
            app = found.wrap(server.streamable_http_app(streamable_http_path="/mcp"))
            start = partial(serve, app, config, shutdown_trigger=over.wait)
            await nursery.start(start)
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the server is up"
    try:
        yield found
    finally:
        loop, over = box[0]
        loop.run_sync_soon(over.set)
        thread.join(PATIENCE)
        listener.detach()
