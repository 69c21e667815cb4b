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

from agentos.access.think_request import ThinkRequest
from agentos.gateways.error_status import InvalidKey, advice, status
from agentos.http.exchange import Exchange
from agentos.http.server import HTTPListener, with_own_allowance
from agentos.kernel.call import Call
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.listener import ConnectionLimit
from agentos.kernel.text_buffer import TextBuffer
from agentos.llm.jobs import ThinkResult
from agentos.llm.providers.provider import Answer
from agentos.threads import run_in_thread
from agentos_sdk import codec
from agentos_sdk.calls import think
from agentos_sdk.errors import CallError, NotFound
from agentos_sdk.opcodes import Op

from . import request, response
from .request import CompletionRequest
from .response import Shape

MAX_INLINE_BYTES = 64 << 10  # bytes parsed in the event loop; larger bodies in a thread


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
        await HTTPListener(listener, self.connection_limit, guest, Endpoint(self, caller, guest.allowance, key)).serve()


@define(eq=False)
class Counted(TextBuffer):
    """Text not yet read counts towards the reader's allowance; ``outcome`` is set when the answer has ended."""

    _allowance: Allowance = field(kw_only=True)
    outcome: Answer | CallError | None = None
    _held: int = 0

    def add(self, text: str) -> None:
        super().add(text)
        self._held += len(text)
        self._allowance.hold_reply(len(text))

    def end_with(self, outcome: Answer | CallError) -> None:
        self.outcome = outcome
        self.end()

    def take(self) -> str:
        self._allowance.drop_reply(self._held)
        self._held = 0
        return super().take()


@define(eq=False)
class Endpoint:
    """The endpoint of one agent, as an ASGI application."""

    common: Completions
    caller: Caller
    allowance: Allowance
    key: str | None
    _created: int = field(factory=lambda: int(time.time()))

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await Exchange(scope, receive, send, self.common.max_payload, self.allowance).run(self._answer)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._route(exchange)
        except CallError as error:
            await self._refuse(exchange, error)
        except Exception as bug:
            await self._refuse(exchange, internal(bug, f"the endpoint of {self.caller.name}"))

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
        body = await exchange.body()
        read = partial(request.parse_request, body, next(iter(self.common.models), ""), self.common.provider)
        if len(body) <= MAX_INLINE_BYTES:
            asked = read()
        else:
            async with self.caller.turn:
                asked = await run_in_thread(read, limiter=self.common.reading)
        shape = Shape(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()))
        if asked.stream:
            await self._stream(exchange, asked, shape)
        else:
            await exchange.reply(200, shape.whole(await self._think(asked)))

    async def _think(self, asked: CompletionRequest, pieces: "Counted | None" = None) -> Answer:
        """Make the agent's THINK call; the text is added to ``pieces`` as it arrives."""

        async def send(chunk: bytes) -> None:
            assert pieces is not None, "only a stream is sent in chunks"
            pieces.add(codec.decode(think.Delta, codec.parse(chunk)).delta)

        call = Call(self.caller, streams=pieces is not None, send=send)
        self.caller.activity.begin_wait()
        try:
            thought = await self.caller.table.perform(Op.THINK, call, ThinkRequest(asked.question, stream=asked.stream))
        finally:
            self.caller.activity.end_wait()
        assert isinstance(thought, ThinkResult), "THINK's reply before it is encoded"
        return thought.answer

    async def _stream(self, exchange: Exchange, asked: CompletionRequest, shape: Shape) -> None:
        pieces = Counted(allowance=self.allowance)

        async def ask() -> None:
            try:
                answer = await self._think(asked, pieces)
            except CallError as error:
                pieces.end_with(error)
            else:
                pieces.end_with(answer)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await self._send_stream(exchange, asked, shape, pieces)
        finally:
            pieces.take()

    async def _send_stream(self, exchange: Exchange, asked: CompletionRequest, shape: Shape, pieces: Counted) -> None:
        text, told, model = await pieces.next(), 0, asked.question.model
        if not text and isinstance(pieces.outcome, CallError):  # the status can still be an error
            await self._refuse(exchange, pieces.outcome)
            return
        await exchange.begin(200, "text/event-stream", [("cache-control", "no-cache")])
        await exchange.write(shape.begin(model))
        while text:
            told += len(text)
            await exchange.write(shape.piece(model, text))
            text = await pieces.next()
        if isinstance(pieces.outcome, Answer):
            if rest := pieces.outcome.text[told:]:
                await exchange.write(shape.piece(model, rest))
            await exchange.write(shape.end(pieces.outcome, asked.include_usage))
        elif pieces.outcome is not None:
            await exchange.write(response.broken_off(pieces.outcome))
        await exchange.end()

    async def _refuse(self, exchange: Exchange, error: CallError) -> None:
        if not exchange.begun:
            data = codec.encode(response.refusal(error))
            await exchange.reply(status(error), data, advice(error, time.time()))
            return
        await exchange.write(response.broken_off(error))
        await exchange.end()
