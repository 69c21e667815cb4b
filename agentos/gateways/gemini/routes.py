"""Gemini-compatible part of an agent's HTTP endpoint: contents, counts of tokens, embeddings, models."""

import re
import secrets

from attrs import evolve, frozen

from agentos.gateways.think_calls import ThinkCalls
from agentos.http.exchange import Exchange
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.errors import BadRequest, NotFound

from . import embeddings, request, response
from .response import Shape

PATH = re.compile("/v1(?:beta|alpha)?/models(?:/(.+?))?(?::([A-Za-z]+))?", re.DOTALL)  # a name and a method
OTHERS = ("/v1/chat/", "/v1/responses", "/v1/embeddings", "/v1/messages")  # other protocols' paths
MEDIA_TYPES = {"json": "application/json", "sse": "text/event-stream"}  # of streams, by the parameter alt
EXPECTED = f"expected POST /v1beta/models/NAME:METHOD with {', '.join(response.METHODS)}, GET /v1beta/models[/NAME]"


@frozen
class GeminiRoutes:
    """Requests of one agent. Under ``/v1`` Gemini's are those to a method of a model, and what Google's clients ask."""

    calls: ThinkCalls
    refusal = staticmethod(response.refusal)

    def serves(self, exchange: Exchange) -> bool:
        method, path = exchange.head["method"], exchange.head["path"]
        if path.startswith(("/v1beta/", "/v1alpha/")) or (method == "POST" and path.startswith("/v1/models/")):
            return True
        is_by_google = exchange.header("x-goog-api-key") or exchange.header("x-goog-api-client")
        return bool(is_by_google) and not path.startswith(OTHERS)

    async def answer(self, exchange: Exchange) -> None:
        verb, path = exchange.head["method"], exchange.head["path"]
        found = PATH.fullmatch(path)
        name, method = (found[1], found[2]) if found is not None else (None, None)
        match verb, method:
            case "POST", "generateContent" | "streamGenerateContent" if name:
                await self._generate(exchange, name, streams=method == "streamGenerateContent")
            case "POST", "countTokens" if name:
                await self._count(exchange, name)
            case "POST", "embedContent" if name:
                asked = await self.calls.parse(exchange, embeddings.parse_one, name)
                await self.calls.embed(exchange, asked, embeddings.encode_one)
            case "POST", "batchEmbedContents" if name:
                asked = await self.calls.parse(exchange, embeddings.parse_batch, name)
                await self.calls.embed(exchange, asked, embeddings.encode_batch)
            case "GET", _ if found is not None:
                await self._tell_models(exchange, path.partition("/models")[2].removeprefix("/"))
            case _:
                raise NotFound(f"{verb} {path}: {EXPECTED}")

    async def _generate(self, exchange: Exchange, name: str, streams: bool) -> None:
        alt = exchange.query("alt") or "json"
        if alt not in MEDIA_TYPES:
            raise BadRequest(f"alt: {Unexpected(alt, *MEDIA_TYPES)}", param="alt")
        asked = evolve(await self.calls.parse(exchange, request.parse_request, name), stream=streams)
        shape = Shape(secrets.token_hex(12), in_events=alt == "sse")
        await self.calls.answer(exchange, asked, shape, media_type=MEDIA_TYPES[alt])

    async def _count(self, exchange: Exchange, name: str) -> None:
        question = await self.calls.parse(exchange, request.parse_count, name)
        self.calls.check_model(name)
        tokens = await self.calls.estimate(question)
        await exchange.reply(200, codec.encode({"totalTokens": tokens, "estimated": True}))

    async def _tell_models(self, exchange: Exchange, name: str) -> None:
        if not name:
            told: object = {"models": [response.model(each) for each in self.calls.line.routes.names()]}
        else:
            self.calls.check_offered(name)
            told = response.model(name)
        await exchange.reply(200, codec.encode(told))
