"""OpenAI-compatible part of an agent's HTTP endpoint: chat completions, responses, embeddings, models."""

import secrets
import time
from functools import partial

from attrs import define, field

from agentos.gateways.think_calls import ThinkCalls
from agentos.http.exchange import Exchange
from agentos_sdk.encoding import codec
from agentos_sdk.errors import NotFound

from . import embeddings, request, response
from .response import Shape
from .responses import Responses
from .stored_responses import StoredResponses

EXPECTED = (
    "expected POST /v1/chat/completions, POST /v1/responses, POST /v1/embeddings, GET /v1/models, "
    "GET /v1/models/NAME, GET or DELETE /v1/responses/ID"
)


@define(eq=False)
class OpenAIRoutes:
    """Requests of one agent. ``created`` is when its endpoint began, in seconds since the epoch."""

    calls: ThinkCalls
    created: int
    _responses: Responses = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._responses = Responses(self.calls, StoredResponses(self.calls))

    refusal = staticmethod(response.refusal)

    def serves(self, exchange: Exchange) -> bool:
        """Whatever no other protocol serves."""
        return True

    async def answer(self, exchange: Exchange) -> None:
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
                models = [response.model(each, self.created) for each in self.calls.line.routes.names()]
                await exchange.reply(200, codec.encode({"object": "list", "data": models}))
            case "GET", "/v1/models/":
                self.calls.check_offered(name)
                await exchange.reply(200, codec.encode(response.model(name, self.created)))
            case _:
                raise NotFound(f"{method} {path}: {EXPECTED}")

    async def _complete(self, exchange: Exchange) -> None:
        asked = await self.calls.parse(exchange, request.parse_request)
        shape = Shape(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), asked.include_usage)
        await self.calls.answer(exchange, asked, shape)

    async def _embed(self, exchange: Exchange) -> None:
        asked = await self.calls.parse(exchange, embeddings.parse_request)
        await self.calls.embed(exchange, asked, partial(embeddings.encode_response, asked))
