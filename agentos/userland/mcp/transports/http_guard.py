"""What every HTTP request has to pass before MCP sees it: path, Host, Origin, and a token.

A page of another site can make a browser send requests here, and by DNS rebinding even under a name of its own. So Host
must be a name of this server, and Origin, where there is one, this server's. The token names the client.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from attrs import define, field
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from agentos.threads import Limiter, run_in_thread
from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry, ClientError

T = TypeVar("T")

log = logging.getLogger(__name__)

PATH = "/mcp"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_TOKEN = 256  # characters
MAX_LOOKS = 4  # threads that read entries at a time


@define(eq=False)
class Guard:
    """ASGI application in front of MCP's: ``find_app`` gives that of a client.

    ``names`` are host names of this server, without port.
    """

    find_app: Callable[[ClientEntry], Awaitable[ASGIApp]]
    state_dir: Path
    names: Sequence[str]
    _looks: Limiter = field(factory=lambda: Limiter(MAX_LOOKS))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "MCP is served over HTTP alone"})
            return
        found = find_fault(scope, self.names) or await self._find_client(scope)
        if not isinstance(found, ClientEntry):
            await found(scope, receive, send)
            return
        with suppress(OSError):  # where the time of use can't be written the request is served
            await self._look(clients.record_use, found.name)
        await (await self.find_app(found))(scope, receive, send)

    async def _find_client(self, scope: Scope) -> ClientEntry | PlainTextResponse:
        """The client that the token names."""
        given = Headers(scope=scope).getlist("authorization")
        kind, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() != "bearer" or len(token) > MAX_TOKEN:
            return _unauthorized("this server needs `Authorization: Bearer TOKEN`: `agentos mcp token NAME` makes one")
        try:
            entry = await self._look(clients.find_by_token, token.strip())
        except ClientError as error:
            log.warning("%s", error)
            entry = None
        except OSError as error:
            log.error("entries of clients can't be read: %s", error)
            return PlainTextResponse("the entries of clients can't be read now\n", 503)
        if entry is None:
            return _unauthorized("this token isn't known, or was revoked: `agentos mcp token NAME` makes another")
        return entry

    async def _look(self, function: Callable[[Path, str], T], argument: str) -> T:
        return await run_in_thread(function, self.state_dir, argument, limiter=self._looks)


def find_fault(scope: Scope, names: Sequence[str]) -> PlainTextResponse | None:
    """The refusal of a request for its path, Host or Origin, None if it has none of these faults."""
    headers = Headers(scope=scope)
    if scope["path"] != PATH:
        return PlainTextResponse(f"there is nothing here: MCP is served at {PATH}\n", 404)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or host_name(hosts[0]) not in names:
        shown = hosts[0] if len(hosts) == 1 else f"{len(hosts)} of them"
        return PlainTextResponse(f"Host: {shown[:100]!a}: not a name of this server: add it with --allow-host\n", 421)
    origins = headers.getlist("origin")
    if origins and origins not in ([f"http://{hosts[0]}"], [f"https://{hosts[0]}"]):
        return PlainTextResponse("Origin: the request comes from a page of another site\n", 403)
    return None


def host_name(host: str) -> str:
    """The name in a Host header: ``localhost`` of ``localhost:8766``."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _unauthorized(why: str) -> PlainTextResponse:
    return PlainTextResponse(why + "\n", 401, {"www-authenticate": 'Bearer realm="agentos"'})
