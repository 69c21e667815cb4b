"""Checks of Host and Origin before every request, and security headers of every response.

A page of another site can make a browser send requests here, and by DNS rebinding even under a name of its own. So Host
must be a name of this server, and a request that opens the feed must come from a page of this server. With a link to it
another site can only open it.

Names below ``localhost`` are the loopback's in browsers. A link has one that no other run of the kernel had: so its
origin keeps nothing of a program that had the port before, no service worker, no page. docs/decisions/0090.
"""

import re
from collections.abc import Sequence
from typing import Any

from attrs import define
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
NAMES_OF_RUNS = re.compile(r"agentos-[0-9a-f]{16}\.localhost")  # also of former ones, of which pages may be open
MAX_URL = 2048  # bytes of path and query
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types agentos"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@define(eq=False)
class Guard:
    """ASGI middleware. ``names`` are further host names, without port, of a reverse proxy in front."""

    app: ASGIApp
    names: Sequence[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        refusal = self.find_fault(scope)
        if refusal is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal})
        else:
            await PlainTextResponse(refusal + "\n", 403)(scope, receive, _with_headers(send))

    def find_fault(self, scope: Scope) -> str | None:
        """Why the request is refused, None if it isn't."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(_host_name(hosts[0])):
            return "Host: not a name of this server: add it to `allowed_hosts` in [dashboard] if a proxy sends it"
        if len(scope["path"]) + len(scope["query_string"]) > MAX_URL:
            return "the URL is too long"
        origins = headers.getlist("origin")
        acts = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if (acts or origins) and origins not in ([f"http://{hosts[0]}"], [f"https://{hosts[0]}"]):
            return "Origin: the request comes from a page of another site"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-dest") != "document":
            return "Sec-Fetch-Site: a page of another site has this as a part of it"
        return None

    def _is_ours(self, name: str) -> bool:
        return name in (*LOOPBACK_NAMES, *self.names) or NAMES_OF_RUNS.fullmatch(name) is not None


def name_run(run: str) -> str:
    """The host name of a run of the kernel; ``run`` has 16 hex digits."""
    return f"agentos-{run}.localhost"


def _host_name(host: str) -> str:
    """The name in a Host header: ``localhost`` of ``localhost:8000``."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: Any = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
