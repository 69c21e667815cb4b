"""THINK calls of one agent for its endpoint, whole or streamed, and its large bodies, which are read in a thread."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

import trio
from attrs import define, field

from agentos.access.think_request import ThinkRequest
from agentos.http.exchange import Exchange
from agentos.kernel.call import Call
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.request_body import MAX_INLINE_BYTES
from agentos.kernel.text_buffer import TextBuffer
from agentos.llm.jobs import ThinkResult
from agentos.llm.line import Line
from agentos.llm.providers.provider import Answer, Question
from agentos.llm.settings import QueuePath
from agentos_sdk import codec
from agentos_sdk.calls import think
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op

from .rate_limits import Headers, list_headers

T = TypeVar("T")
Args = TypeVarTuple("Args")


class StreamShape(Protocol):
    """The events of one streamed answer, as bytes."""

    def begin(self, model: str) -> bytes: ...

    def piece(self, model: str, text: str) -> bytes: ...

    def end(self, answer: Answer, cost: float | None) -> bytes:
        """The events after the text. ``cost``: see :class:`agentos.llm.jobs.ThinkResult`."""

    def broken_off(self, error: CallError) -> bytes:
        """The last event of a stream that ends with an error."""


@define(eq=False)
class Counted(TextBuffer):
    """Text not yet read counts towards the reader's allowance; ``outcome`` is set when the answer has ended."""

    _allowance: Allowance = field(kw_only=True)
    outcome: ThinkResult | CallError | None = None
    _held: int = 0

    def add(self, text: str) -> None:
        super().add(text)
        self._held += len(text)
        self._allowance.hold_reply(len(text))

    def end_with(self, outcome: ThinkResult | CallError) -> None:
        self.outcome = outcome
        self.end()

    def take(self) -> str:
        self._allowance.drop_reply(self._held)
        self._held = 0
        return super().take()


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

    async def think(self, question: Question, on_text: Callable[[str], None] | None = None) -> ThinkResult:
        """Make the agent's THINK call; ``on_text`` is called with each piece of its text as it arrives."""

        async def send(chunk: bytes) -> None:
            assert on_text is not None, "only a stream is sent in chunks"
            on_text(codec.decode(think.Delta, codec.parse(chunk)).delta)

        streams = on_text is not None
        thought = await self.perform(Op.THINK, ThinkRequest(question, stream=streams), Call(self.caller, streams, send))
        assert isinstance(thought, ThinkResult), "THINK's reply before it is encoded"
        return thought

    async def perform(self, op: Op, request: object, call: Call | None = None) -> object:
        """Make a call of the agent's; returns the reply before it is encoded."""
        self.caller.activity.begin_wait()
        try:
            return await self.caller.table.perform(op, call or Call(self.caller, False, _send_nothing), request)
        finally:
            self.caller.activity.end_wait()

    def headers(self, cost: float | None = None) -> Headers:
        """What is left of the agent's budgets, and what an answer costs, as headers."""
        left = list_headers(self.line.budget_states(self.queue_path(self.caller)), time.time())
        return left if cost is None else [*left, ("x-agentos-cost", format(cost, ".10g"))]

    async def stream(
        self,
        exchange: Exchange,
        question: Question,
        ask: Callable[[Callable[[str], None]], Awaitable[ThinkResult]],
        shape: StreamShape,
    ) -> None:
        """Send an answer's events as it arrives; raises its error if it has none of them."""
        pieces = Counted(allowance=self.allowance)

        async def collect() -> None:
            try:
                thought = await ask(pieces.add)
            except CallError as error:
                pieces.end_with(error)
            else:
                pieces.end_with(thought)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect)
                text = await pieces.next()
                if text or not isinstance(pieces.outcome, CallError):
                    await self._send_stream(exchange, question, shape, pieces, text)
        finally:
            pieces.take()
        if not exchange.begun:  # the status can still be an error
            assert isinstance(pieces.outcome, CallError), "an answer would have begun"
            raise pieces.outcome

    async def _send_stream(
        self, exchange: Exchange, question: Question, shape: StreamShape, pieces: Counted, text: str
    ) -> None:
        told, model = 0, question.model
        await exchange.begin(200, "text/event-stream", [("cache-control", "no-cache"), *self.headers()])
        await exchange.write(shape.begin(model))
        while text:
            told += len(text)
            await exchange.write(shape.piece(model, text))
            text = await pieces.next()
        if isinstance(pieces.outcome, ThinkResult):
            answer = pieces.outcome.answer
            if rest := answer.text[told:]:
                await exchange.write(shape.piece(model, rest))
            await exchange.write(shape.end(answer, pieces.outcome.cost))
        elif pieces.outcome is not None:
            await exchange.write(shape.broken_off(pieces.outcome))
        await exchange.end()


async def _send_nothing(chunk: bytes) -> None:
    raise AssertionError("only a stream is sent in chunks")
