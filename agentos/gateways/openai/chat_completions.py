"""HTTP endpoint of an agent, compatible with OpenAI and Anthropic, answered by its THINK calls.

The caller is known from the listener, which no other agent can reach. Where others can, on the host's loopback, an API
key is required as well.
"""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from attrs import define, field, frozen
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

from agentos.gateways.anthropic import response as anthropic_response
from agentos.gateways.anthropic.messages import Messages, is_for_anthropic
from agentos.gateways.api_key import InvalidKey, require_key
from agentos.gateways.error_status import advice, status
from agentos.http.exchange import Exchange
from agentos.http.server import HTTPListener, with_own_allowance
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.listener import ConnectionLimit
from agentos.llm.line import Line
from agentos.llm.settings import QueuePath
from agentos_sdk import codec
from agentos_sdk.errors import CallError, NotFound

from . import embeddings, request, response
from .response import Shape
from .responses import Responses
from .stored_responses import StoredResponses
from .think_calls import ThinkCalls

EXPECTED = (
    "expected POST /v1/chat/completions, POST /v1/responses, POST /v1/embeddings, GET /v1/models, "
    "GET /v1/models/NAME, GET or DELETE /v1/responses/ID"
)


@frozen
class Completions:
    """What the endpoints of all agents share. ``queue_path`` says whose budgets a caller's questions count for."""

    line: Line
    queue_path: Callable[[Caller], QueuePath]
    connection_limit: ConnectionLimit
    max_payload: int  # bytes

    async def serve(self, listener: socket.socket, caller: Caller, key: str | None = None) -> None:
        """Serve one agent's listener until cancelled; if ``key`` is set, requests must have it."""
        guest = with_own_allowance(caller)
        endpoint = Endpoint(self, caller, guest.allowance, key)
        await HTTPListener(listener, self.connection_limit, guest, endpoint).serve()


@define(eq=False)
class Endpoint:
    """The endpoint of one agent, as an ASGI application."""

    common: Completions
    caller: Caller
    allowance: Allowance
    key: str | None
    _created: int = field(factory=lambda: int(time.time()))
    _calls: ThinkCalls = field(init=False)
    _responses: Responses = field(init=False)
    _messages: Messages = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._calls = ThinkCalls(self.caller, self.allowance, self.common.line, self.common.queue_path)
        self._responses = Responses(self._calls, StoredResponses(self._calls))
        self._messages = Messages(self._calls, self._models, self._created)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await Exchange(scope, receive, send, self.common.max_payload, self.allowance).run(self._answer)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _answer(self, exchange: Exchange) -> None:
        try:
            require_key(exchange, self.key)
            await (self._messages.answer(exchange) if is_for_anthropic(exchange) else self._route(exchange))
        except CallError as error:
            await self._refuse(exchange, error)
        except Exception as bug:
            await self._refuse(exchange, internal(bug, f"the endpoint of {self.caller.name}"))

    async def _route(self, exchange: Exchange) -> None:
        method, path = exchange.head["method"], exchange.head["path"]
        _, _, name = path.removeprefix("/v1/").partition("/")
        match method, path.removesuffix(name):
            case "POST", "/v1/chat/" if name == "completions":
                await self._complete(exchange)
            case "POST", "/v1/embeddings":
                await self._embed(exchange)
            case "POST", "/v1/responses":
                await self._responses.create(exchange)
            case "GET", "/v1/responses/":
                await self._responses.retrieve(exchange, name)
            case "DELETE", "/v1/responses/":
                await self._responses.delete(exchange, name)
            case "GET", "/v1/models":
                models = [response.model(each, self._created) for each in self._models()]
                await exchange.reply(200, codec.encode({"object": "list", "data": models}))
            case "GET", "/v1/models/":
                if name not in self._models():
                    raise NotFound(f"there is no model {name!r}", param="model")
                await exchange.reply(200, codec.encode(response.model(name, self._created)))
            case _:
                raise NotFound(f"{method} {path}: {EXPECTED}")

    def _models(self) -> Sequence[str]:
        return self.common.line.models()

    async def _complete(self, exchange: Exchange) -> None:
        body, line = await exchange.body(), self.common.line
        asked = await self._calls.read(len(body), request.parse_request, body, line.model, line.provider)
        shape = Shape(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), asked.include_usage)
        if asked.stream:
            await self._calls.stream(exchange, asked.question, partial(self._calls.think, asked.question), shape)
        else:
            thought = await self._calls.think(asked.question)
            await exchange.reply(200, shape.whole(thought.answer, thought.cost), self._calls.headers(thought.cost))

    async def _embed(self, exchange: Exchange) -> None:
        body, calls = await exchange.body(), self._calls
        asked = await calls.read(len(body), embeddings.parse_request, body, self.common.line.model)
        thought = await calls.think(asked.question)
        size = sum(map(len, thought.answer.vectors))
        data = await calls.read(size, embeddings.encode_response, asked, thought.answer, thought.cost)
        await exchange.reply(200, data, calls.headers(thought.cost))

    async def _refuse(self, exchange: Exchange, error: CallError) -> None:
        shapes = anthropic_response if is_for_anthropic(exchange) else response
        if not exchange.begun:
            data = codec.encode(shapes.refusal(error))
            left = self._calls.headers() if error.code != InvalidKey.code else ()
            headers = [*advice(error, time.time()), *left]
            await exchange.reply(status(error), data, headers)
            return
        await exchange.write(shapes.broken_off(error))
        await exchange.end()
