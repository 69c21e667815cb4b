"""HTTP endpoint of an agent, compatible with OpenAI, Anthropic and Gemini, answered by its THINK calls.

The caller is known from the listener, which no other agent can reach. Where others can, on the host's loopback, an API
key is required as well.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

from agentos.http.exchange import Exchange
from agentos.http.server import HTTPListener, with_own_allowance
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.llm.line import Line
from agentos.llm.settings import QueuePath
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, CallError

from .anthropic.messages import Messages
from .api_key import InvalidKey, require_key
from .error_status import advice, retry_seconds, status
from .gemini.routes import GeminiRoutes
from .openai.response import refusal
from .openai.routes import OpenAIRoutes
from .think_calls import ThinkCalls


@frozen
class Endpoints:
    """What the endpoints of all agents share. ``queue_path`` returns the accounts that are charged for a caller."""

    line: Line
    queue_path: Callable[[Caller], QueuePath]
    connection_limit: ConnectionLimit
    max_payload: int  # bytes

    async def serve(self, listener: socket.socket, caller: Caller, key: str | None = None) -> None:
        """Serve one agent's listener until cancelled; if ``key`` is set, requests must have it."""
        guest = with_own_allowance(caller)
        endpoint = Endpoint(self, caller, guest.allowance, key)
        await HTTPListener(listener, self.connection_limit, guest, endpoint).serve()


class VendorProtocol(Protocol):
    """A vendor's protocol at the endpoint of one agent."""

    def serves(self, exchange: Exchange) -> bool:
        """Whether a client of the vendor's API sent the request: what isn't there is refused as that expects it."""

    async def answer(self, exchange: Exchange) -> None: ...

    def refusal(self, error: CallError, after: float | None = None) -> Mapping[str, object]:
        """The body of an error's response; ``after`` is in how many seconds a retry is worth it, if that is known."""


@define(eq=False)
class Endpoint:
    """The endpoint of one agent, as an ASGI application."""

    common: Endpoints
    caller: Caller
    allowance: Allowance
    key: str | None
    _calls: ThinkCalls = field(init=False)
    _protocols: Sequence[VendorProtocol] = field(init=False)

    def __attrs_post_init__(self) -> None:
        created = int(time.time())
        self._calls = ThinkCalls(self.caller, self.allowance, self.common.line, self.common.queue_path)
        self._protocols = (
            GeminiRoutes(self._calls),
            Messages(self._calls, created),
            OpenAIRoutes(self._calls, created),
        )

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await Exchange(scope, receive, send, self.common.max_payload, self.allowance).run(self._answer)
        elif scope["type"] == "websocket":
            await _refuse_websocket(send)

    async def _answer(self, exchange: Exchange) -> None:
        protocol = next(each for each in self._protocols if each.serves(exchange))
        try:
            require_key(exchange, self.key)
            await protocol.answer(exchange)
        except CallError as error:
            await self._refuse(exchange, protocol, error)
        except Exception as bug:
            await self._refuse(exchange, protocol, internal(bug, f"the endpoint of {self.caller.name}"))

    async def _refuse(self, exchange: Exchange, protocol: VendorProtocol, error: CallError) -> None:
        if exchange.begun:  # its response failed in the middle: nothing more can be said in it
            return
        now = time.time()
        data = codec.encode(protocol.refusal(error, retry_seconds(error, now)))
        left = self._calls.headers() if error.code != InvalidKey.code else ()
        await exchange.reply(status(error), data, [*advice(error, now), *left])


async def _refuse_websocket(send: ASGISendCallable) -> None:
    """Refuse with the status at which Codex asks over HTTP at once; after any other it tries six times more."""
    error = BadRequest("there is no WebSocket here: ask over HTTP")
    data, headers = codec.encode(refusal(error)), [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": 426, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": data, "more_body": False})
