"""OpenAI's Responses at an agent's endpoint: created by THINK calls, and stored ones retrieved and deleted."""

import time
from collections.abc import Callable
from functools import partial

import trio
from attrs import define, field

from agentos.gateways.request_fields import read_fields
from agentos.gateways.think_calls import ThinkCalls
from agentos.http.exchange import Exchange
from agentos.llm.queue.request import ThinkResult
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, CallError

from .responses_request import ResponsesRequest, parse_request
from .responses_shape import ResponseShape
from .stored_responses import StoredResponses, new_id


@define(eq=False)
class Responses:
    _calls: ThinkCalls
    _stored: StoredResponses
    _continuing: trio.Lock = field(factory=trio.Lock, init=False)  # held while a conversation is read

    async def create(self, exchange: Exchange) -> None:
        body = await exchange.body()
        asked = await self._read(body)
        async with self._stored.room(asked.store, len(body)) as keeps:
            now = time.time()
            shape = ResponseShape(
                new_id(asked.store, now), int(now), {**asked.echo, "store": keeps}, asked.tools, asked.has_reasoning
            )
            await self._calls.answer(exchange, asked, shape, partial(self._answer, asked, shape))

    async def _read(self, body: bytes) -> ResponsesRequest:
        """The request with the conversation before it, which may be far larger: one at a time."""
        calls, line = self._calls, self._calls.line
        request = await calls.read(len(body), read_fields, body)
        last = request.text("previous_response_id")
        if last is None:
            return await calls.read(len(body), parse_request, request, (), line.model, line.provider)
        async with self._continuing:
            earlier, size = await self._stored.conversation(last)
            return await calls.read(len(body) + size, parse_request, request, earlier, line.model, line.provider)

    async def _answer(
        self, asked: ResponsesRequest, shape: ResponseShape, on_text: Callable[[str], None] | None
    ) -> ThinkResult:
        """Ask the model, and store its answer. A request that asks for that fails without it, another one says so."""
        thought = await self._calls.think(asked, on_text)
        if shape.echo["store"]:
            try:
                await self._stored.add(shape.response(thought.answer, thought.cost), asked.input)
            except CallError:
                if asked.store:
                    raise
                shape.echo = {**shape.echo, "store": False}
        return thought

    async def retrieve(self, exchange: Exchange, id: str) -> None:
        if exchange.query("stream") not in ("", "false"):
            raise BadRequest("stream: a stored response is sent as a whole: leave it out", param="stream")
        found, _ = await self._stored.find(id)
        await exchange.reply(200, codec.encode(found["response"]))

    async def delete(self, exchange: Exchange, id: str) -> None:
        await self._stored.remove(id)
        await exchange.reply(200, codec.encode({"id": id, "object": "response", "deleted": True}))
