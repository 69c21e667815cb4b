"""HTTP endpoint from which Prometheus reads metrics: GET /metrics."""

import hmac
import socket
from collections.abc import Callable

import trio
from attrs import define, field
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

from agentos.http.exchange import Exchange
from agentos.http.server import HTTPListener
from agentos.http.users import FindUser
from agentos.kernel.caller import Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.threads import run_in_thread

from .prometheus import wants_openmetrics, write_metrics
from .snapshot import Snapshot

KEEP_SECONDS = 1.0  # at least, for which one text answers all requests, so many cost no more than one
KEEP_SHARE = 10  # a text is kept this many times as long as it took to make: at most 1/10 of a core
ANSWER_TIMEOUT = 10.0  # seconds that a client has to read the answer
MAX_BODY_BYTES = 1024
TEXT = "text/plain; charset=utf-8"


@define(eq=False)
class Exposition:
    """Writes the metrics as text in a thread, one text at a time, and keeps the last."""

    take: Callable[[], Snapshot]
    _kept: dict[bool, tuple[float, bytes, str]] = field(factory=dict)  # by format, with Trio's time of its end
    _lock: trio.Lock = field(factory=trio.Lock)

    async def text(self, openmetrics: bool) -> tuple[bytes, str]:
        """The text, seldom more than :data:`KEEP_SECONDS` old, and its content type."""
        async with self._lock:
            ends_at, data, content_type = self._kept.get(openmetrics, (float("-inf"), b"", ""))
            began = trio.current_time()
            if began >= ends_at:
                data, content_type = await run_in_thread(write_metrics, self.take(), openmetrics)
                now = trio.current_time()
                self._kept[openmetrics] = now + max(KEEP_SECONDS, KEEP_SHARE * (now - began)), data, content_type
            return data, content_type


@define(eq=False)
class MetricsEndpoint:
    """``caller`` stands for all clients in limits. If there is a ``token``, requests must have it as a bearer token."""

    listener: socket.socket
    connection_limit: ConnectionLimit
    caller: Caller
    exposition: Exposition
    find_user: FindUser
    token: str | None = field(default=None, repr=False)

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = HTTPListener(
            self.listener, self.connection_limit, self.caller, self._answer, find_user=self.find_user
        )
        await listener.serve()

    async def _answer(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI application."""
        if scope["type"] == "http":
            with trio.move_on_after(ANSWER_TIMEOUT):
                await Exchange(scope, receive, send, MAX_BODY_BYTES, self.caller.allowance).run(self._route)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _route(self, exchange: Exchange) -> None:
        method, path = exchange.head["method"], exchange.head["path"]
        if not self._knows_token(exchange.header("authorization")):
            refusal = b"expected the token of [metrics] token_from: Authorization: Bearer TOKEN\n"
            await reply(exchange, 401, refusal, TEXT, [("www-authenticate", "Bearer")])
        elif path != "/metrics":
            await reply(exchange, 404, b"the metrics are at /metrics\n", TEXT)
        elif method != "GET":
            await reply(exchange, 405, b"expected GET\n", TEXT, [("allow", "GET")])
        else:
            try:
                data, content_type = await self.exposition.text(wants_openmetrics(exchange.header("accept")))
            except Exception as bug:
                await reply(exchange, 500, f"{internal(bug, 'the metrics')}\n".encode(), TEXT)
            else:
                await reply(exchange, 200, data, content_type)

    def _knows_token(self, said: str) -> bool:
        scheme, _, token = said.partition(" ")
        expected = self.token
        return expected is None or (
            scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), expected.encode())
        )


async def reply(
    exchange: Exchange, status: int, data: bytes, content_type: str, headers: list[tuple[str, str]] | None = None
) -> None:
    await exchange.begin(status, content_type, [("content-length", str(len(data))), *(headers or [])])
    await exchange.write(data)
    await exchange.end()
