"""OpenAI-compatible HTTP endpoint (chat completions, models) of an agent, answered by its THINK calls.

The caller is known from the listener, which no other agent can reach. Where others can, on the host's loopback, an API
key is required as well.
"""

import hmac
import secrets
import socket
import time
from collections.abc import Sequence
from functools import partial

import trio
from attrs import define, field, frozen
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

from agentos.gateways.answers import Answers, Events
from agentos.gateways.error_status import InvalidKey, advice, status
from agentos.http.exchange import Exchange
from agentos.http.server import HTTPListener, with_own_allowance
from agentos.kernel.caller import Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.listener import ConnectionLimit
from agentos_sdk import codec
from agentos_sdk.errors import CallError, NotFound

from . import request, response
from .response import Shape


@frozen
class Completions:
    """What the endpoints of all agents share. ``models`` can be requested; the first one is the default.

    ``provider`` is the name of the provider.
    """

    models: Sequence[str]
    provider: str
    connection_limit: ConnectionLimit
    max_payload: int  # bytes
    reading: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def serve(self, listener: socket.socket, caller: Caller, key: str | None = None) -> None:
        """Serve one agent's listener until cancelled; if ``key`` is set, requests must have it as a bearer token."""
        guest = with_own_allowance(caller)
        endpoint = Endpoint(self, Answers(caller, guest.allowance, self.reading), key)
        await HTTPListener(listener, self.connection_limit, guest, endpoint).serve()


@define(eq=False)
class Endpoint:
    """The endpoint of one agent, as an ASGI application."""

    common: Completions
    answers: Answers
    key: str | None
    _created: int = field(factory=lambda: int(time.time()))

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await Exchange(scope, receive, send, self.common.max_payload, self.answers.allowance).run(self._answer)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._route(exchange)
        except CallError as error:
            await self._refuse(exchange, error)
        except Exception as bug:
            await self._refuse(exchange, internal(bug, f"the endpoint of {self.answers.caller.name}"))

    async def _route(self, exchange: Exchange) -> None:
        if self.key is not None:
            said = exchange.header("authorization").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(said, self.key.encode()):
                raise InvalidKey("expected the key that this agent has as OPENAI_API_KEY in its environment")
        method, path = exchange.head["method"], exchange.head["path"]
        if (method, path) == ("POST", "/v1/chat/completions"):
            await self._complete(exchange)
        elif (method, path) == ("GET", "/v1/models"):
            models = [response.model(name, self._created) for name in self.common.models]
            await exchange.reply(200, codec.encode({"object": "list", "data": models}))
        elif method == "GET" and path.removeprefix("/v1/models/") in self.common.models:
            name = path.removeprefix("/v1/models/")
            await exchange.reply(200, codec.encode(response.model(name, self._created)))
        elif method == "GET" and path.startswith("/v1/models/"):
            raise NotFound(f"there is no model {path.removeprefix('/v1/models/')!r}", param="model")
        else:
            raise NotFound(
                f"{method} {path}: expected POST /v1/chat/completions, GET /v1/models or GET /v1/models/NAME"
            )

    async def _complete(self, exchange: Exchange) -> None:
        model = next(iter(self.common.models), "")
        asked = await self.answers.read(
            exchange, partial(request.parse_request, model=model, provider=self.common.provider)
        )
        shape, model = Shape(f"chatcmpl-{secrets.token_hex(12)}", int(time.time())), asked.question.model
        if asked.stream:
            end = partial(shape.end, include_usage=asked.include_usage)
            events = Events(shape.begin(model), partial(shape.piece, model), end)
            await self.answers.stream(exchange, asked.question, events)
        else:
            await exchange.reply(200, shape.whole((await self.answers.think(asked.question)).answer))

    async def _refuse(self, exchange: Exchange, error: CallError) -> None:
        if not exchange.begun:
            data = codec.encode(response.refusal(error))
            await exchange.reply(status(error), data, advice(error, time.time()))
            return
        await exchange.write(response.broken_off(error))
        await exchange.end()
