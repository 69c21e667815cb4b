"""Anthropic-compatible part of an agent's HTTP endpoint: messages, counts of tokens, models."""

import secrets

from attrs import frozen

from agentos.gateways.think_calls import ThinkCalls
from agentos.http.exchange import Exchange
from agentos_sdk.encoding import codec
from agentos_sdk.errors import NotFound

from . import request, response
from .response import Shape


@frozen
class Messages:
    """Requests of one agent. ``created`` is when its endpoint began, in seconds since the epoch."""

    calls: ThinkCalls
    created: int

    refusal = staticmethod(response.refusal)

    def serves(self, exchange: Exchange) -> bool:
        return exchange.head["path"].startswith("/v1/messages") or bool(exchange.header("anthropic-version"))

    async def answer(self, exchange: Exchange) -> None:
        method, path = exchange.head["method"], exchange.head["path"]
        name = path.removeprefix("/v1/models/")
        match method, path:
            case "POST", "/v1/messages":
                await self._complete(exchange)
            case "POST", "/v1/messages/count_tokens":
                question = (await self.calls.parse(exchange, request.parse_request)).question
                self.calls.check_model(question.model)
                tokens = await self.calls.estimate(question)
                await exchange.reply(200, codec.encode({"input_tokens": tokens, "estimated": True}))
            case "GET", "/v1/models":
                await exchange.reply(
                    200, codec.encode(response.list_models(self.calls.line.routes.names(), self.created))
                )
            case "GET", _ if name != path:
                self.calls.check_offered(name)
                await exchange.reply(200, codec.encode(response.model(name, self.created)))
            case _:
                raise NotFound(
                    f"{method} {path}: expected POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models or"
                    " GET /v1/models/NAME"
                )

    async def _complete(self, exchange: Exchange) -> None:
        asked = await self.calls.parse(exchange, request.parse_request)
        shape = Shape(f"msg_{secrets.token_hex(12)}", await self.calls.estimate(asked.question))
        await self.calls.answer(exchange, asked, shape)
