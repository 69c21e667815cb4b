"""THINK calls of one agent for its endpoint, whole or streamed, and its large bodies, which are read in a thread."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

import trio
from attrs import define, field

from agentos.access.think_request import ThinkRequest
from agentos.http.exchange import Exchange
from agentos.kernel.call import Call
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.wire.request_body import MAX_INLINE_BYTES
from agentos.kernel.wire.text_buffer import TextBuffer
from agentos.llm.line import Line
from agentos.llm.providers.provider import Answer, Question, estimate_input_tokens
from agentos.llm.queue.request import ThinkResult
from agentos.llm.settings import QueuePath
from agentos_sdk.calls import think
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError, NotFound
from agentos_sdk.opcodes import Op

from .rate_limits import Headers, list_headers
from .request_fields import Asked

T = TypeVar("T")
Args = TypeVarTuple("Args")

Ask = Callable[[Callable[[str], None] | None], Awaitable[ThinkResult]]
"""Makes a THINK call; if it is given a function, the call is streamed and that gets each piece of the text."""


class AnswerShape(Protocol):
    """The response to one request as bytes: whole, or the events of its stream."""

    def whole(self, answer: Answer, cost: float | None) -> bytes:
        """The response without a stream. ``cost``: see :class:`~agentos.llm.queue.request.ThinkResult`."""

    def begin(self, model: str) -> bytes: ...

    def piece(self, model: str, text: str) -> bytes: ...

    def end(self, answer: Answer, cost: float | None) -> bytes:
        """The events after the text."""

    def broken_off(self, error: CallError) -> bytes:
        """The last event of a stream that ends with an error."""


@define(eq=False)
class Counted(TextBuffer):
    """Text counts towards the reader's allowance until it is sent: until the next text is taken, or :meth:`release`.

    ``outcome`` is set when the answer has ended.
    """

    _allowance: Allowance = field(kw_only=True)
    outcome: ThinkResult | CallError | None = None
    _held: int = 0  # characters that haven't been taken
    _taken: int = 0  # characters that are being sent

    def add(self, text: str) -> None:
        super().add(text)
        self._held += len(text)
        self._allowance.take(replies=len(text))

    def end_with(self, outcome: ThinkResult | CallError) -> None:
        self.outcome = outcome
        self.end()

    def take(self) -> str:
        self._allowance.give_back(replies=self._taken)
        self._taken, self._held = self._held, 0
        return super().take()

    def release(self) -> None:
        """Count none of the text any more."""
        self._allowance.give_back(replies=self._taken + self._held)
        self._taken = self._held = 0


@define(eq=False)
class ThinkCalls:
    """``allowance`` is that of the endpoint's port."""

    caller: Caller
    allowance: Allowance
    line: Line
    queue_path: Callable[[Caller], QueuePath]

    async def read(self, size: int, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Call a function that reads ``size`` bytes: in a thread if they are many, after all other large bodies."""
        if size <= MAX_INLINE_BYTES:
            return function(*args)
        return await self.caller.table.reader.run(self.caller, function, *args)

    async def parse(self, exchange: Exchange, function: Callable[[bytes, str, str], T], model: str | None = None) -> T:
        """Parse the body by a function that takes it, the model if that names none, and the name of the provider."""
        body = await exchange.body()
        return await self.read(len(body), function, body, model or self.line.model, self.line.provider)

    async def estimate(self, question: Question) -> int:
        """The kernel's estimate of the tokens of a question: no provider is asked."""
        return await self.read(question.size, estimate_input_tokens, question)

    async def think(self, asked: Asked, on_text: Callable[[str], None] | None = None) -> ThinkResult:
        """Make the agent's THINK call; ``on_text`` is called with each piece of its text as it arrives."""
        self.check_model(asked.question.model)

        async def send(chunk: bytes) -> None:
            assert on_text is not None, "only a stream is sent in chunks"
            on_text(codec.decode(think.Delta, codec.parse(chunk)).delta)

        streams = on_text is not None
        request = ThinkRequest(asked.question, stream=streams, class_=asked.class_, left_out=asked.left_out)
        thought = await self.perform(Op.THINK, request, Call(self.caller, streams, send))
        assert isinstance(thought, ThinkResult), "THINK's reply before it is encoded"
        return thought

    def check_model(self, name: str) -> None:
        """Refuse a model that no provider has, before rules decide about it; raises ``NotFound``.

        Without a provider none is known, and the call says why.
        """
        if self.line.model and not self.line.routes.knows(name):
            raise _unknown_model(name)

    def check_offered(self, name: str) -> None:
        """Refuse a model that the list of models doesn't claim; raises ``NotFound``."""
        if not self.line.routes.offers(name):
            raise _unknown_model(name)

    async def perform(self, op: Op, request: object, call: Call | None = None) -> object:
        """Make a call of the agent's; returns the reply before it is encoded."""
        self.caller.activity.waiting += 1
        try:
            return await self.caller.table.perform(op, call or Call(self.caller, False), request)
        finally:
            self.caller.activity.end_wait()

    def headers(self, thought: ThinkResult | None = None) -> Headers:
        """What is left of the agent's budgets, what an answer costs, and which models were passed over, as headers."""
        found = [*list_headers(self.line.budget_states(self.queue_path(self.caller)), time.time())]
        if thought is not None and thought.cost is not None:
            found.append(("x-agentos-cost", format(thought.cost, ".10g")))
        if thought is not None and thought.fallbacks:
            found.append(("x-agentos-fallbacks", ", ".join(each.model for each in thought.fallbacks)))
        return found

    async def embed(self, exchange: Exchange, asked: Asked, encode: Callable[[Answer, float | None], bytes]) -> None:
        """Send the vectors that a question asks for; ``encode`` gets the answer and its cost."""
        thought = await self.think(asked)
        size = sum(map(len, thought.answer.vectors))
        data = await self.read(size, encode, thought.answer, thought.cost)
        await exchange.reply(200, data, [*self.headers(thought), *_left_out(asked)])

    async def answer(
        self,
        exchange: Exchange,
        asked: Asked,
        shape: AnswerShape,
        ask: Ask | None = None,
        media_type: str = "text/event-stream",
    ) -> None:
        """Send the answer: whole, or as it arrives, as a stream of this media type. ``ask`` makes the call instead."""
        more = _left_out(asked)
        ask = ask or partial(self.think, asked)
        if asked.stream:
            await self._stream(exchange, asked.question, ask, shape, more, media_type)
        else:
            thought = await ask(None)
            await exchange.reply(200, shape.whole(thought.answer, thought.cost), [*self.headers(thought), *more])

    async def _stream(
        self, exchange: Exchange, question: Question, ask: Ask, shape: AnswerShape, more: Headers, media_type: str
    ) -> None:
        """Send an answer's events as it arrives; raises its error if it has none of them."""
        pieces = Counted(allowance=self.allowance)

        async def collect() -> None:
            try:
                thought = await ask(pieces.add)
            except Exception as error:
                pieces.end_with(self._call_error(error))
            else:
                pieces.end_with(thought)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect)
                text = await pieces.next()
                if text or not isinstance(pieces.outcome, CallError):
                    await self._send_stream(exchange, question, shape, pieces, text, more, media_type)
        finally:
            pieces.release()
        if not exchange.begun:  # the status can still be an error
            assert isinstance(pieces.outcome, CallError), "an answer would have begun"
            raise pieces.outcome

    async def _send_stream(
        self,
        exchange: Exchange,
        question: Question,
        shape: AnswerShape,
        pieces: Counted,
        text: str,
        more: Headers,
        media_type: str,
    ) -> None:
        """Send the events of an answer that has begun, of which ``text`` is the first piece."""
        told, model = 0, question.model
        await exchange.begin(200, media_type, [("cache-control", "no-cache"), *self.headers(), *more])
        try:
            await exchange.write(shape.begin(model))
            while text:
                told += len(text)
                await exchange.write(shape.piece(model, text))
                text = await pieces.next()
            if isinstance(pieces.outcome, CallError):
                raise pieces.outcome
            assert pieces.outcome is not None, "the text ends with the answer"
            answer = pieces.outcome.answer
            rest = shape.piece(model, answer.text[told:]) if answer.text[told:] else b""
            last = rest + shape.end(answer, pieces.outcome.cost)
        except Exception as error:
            last = shape.broken_off(self._call_error(error))
        await exchange.write(last)
        await exchange.end()

    def _call_error(self, error: Exception) -> CallError:
        return error if isinstance(error, CallError) else internal(error, f"the endpoint of {self.caller.name}")


def _left_out(asked: Asked) -> Headers:
    return [("x-agentos-left-out", ", ".join(asked.left_out))] if asked.left_out else []


def _unknown_model(name: str) -> NotFound:
    return NotFound(f"there is no model {name[:200]!r}: GET /v1/models lists the names", param="model")
