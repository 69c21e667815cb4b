"""Anthropic-compatible part of an agent's HTTP endpoint: messages, counts of tokens, models."""

import secrets
from functools import partial

from attrs import frozen

from agentos.gateways.think_calls import ThinkCalls, unknown_model
from agentos.http.exchange import Exchange
from agentos.llm.providers.provider import estimate_input_tokens
from agentos_sdk.encoding import codec
from agentos_sdk.errors import NotFound

from . import request, response
from .response import Shape


def is_for_anthropic(exchange: Exchange) -> bool:
    """Whether a client of Anthropic's API sent the request: what isn't there is refused as its clients expect it."""
    return exchange.head["path"].startswith("/v1/messages") or bool(exchange.header("anthropic-version"))


@frozen
class Messages:
    """Requests of one agent. ``created`` is when its endpoint began, in seconds since the epoch."""

    calls: ThinkCalls
    created: int

    async def answer(self, exchange: Exchange) -> None:
        method, path = exchange.head["method"], exchange.head["path"]
        name = path.removeprefix("/v1/models/")
        match method, path:
            case "POST", "/v1/messages":
                await self._complete(exchange)
            case "POST", "/v1/messages/count_tokens":
                body = await exchange.body()
                await exchange.reply(200, codec.encode({"input_tokens": await self._count(body), "estimated": True}))
            case "GET", "/v1/models":
                await exchange.reply(
                    200, codec.encode(response.list_models(self.calls.line.routes.names(), self.created))
                )
            case "GET", _ if name != path and self.calls.line.routes.offers(name):
                await exchange.reply(200, codec.encode(response.model(name, self.created)))
            case "GET", _ if name != path:
                raise unknown_model(name)
            case _:
                raise NotFound(
                    f"{method} {path}: expected POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models or"
                    " GET /v1/models/NAME"
                )

    async def _complete(self, exchange: Exchange) -> None:
        body, line = await exchange.body(), self.calls.line
        asked = await self.calls.read(len(body), request.parse_request, body, line.model, line.provider)
        tokens = await self.calls.read(len(body), estimate_input_tokens, asked.question)
        shape = Shape(f"msg_{secrets.token_hex(12)}", tokens)
        ask = partial(self.calls.think, asked.question)
        await self.calls.answer(exchange, asked.question, ask, shape, stream=asked.stream)

    async def _count(self, body: bytes) -> int:
        """The kernel's estimate: no provider is asked."""
        line = self.calls.line
        asked = await self.calls.read(len(body), request.parse_request, body, line.model, line.provider)
        self.calls.check_model(asked.question.model)
        return await self.calls.read(len(body), estimate_input_tokens, asked.question)
