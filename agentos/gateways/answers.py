"""What the endpoints of all vendors' protocols share: they read a request, make its THINK call and send the answer."""

from collections.abc import Callable
from typing import TypeVar

import trio
from attrs import define, field, frozen

from agentos.access.think_request import ThinkRequest
from agentos.http.exchange import Exchange
from agentos.kernel.call import Call
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.text_buffer import TextBuffer
from agentos.llm.jobs import ThinkResult
from agentos.llm.providers.provider import Answer, Question
from agentos.threads import run_in_thread
from agentos_sdk import codec
from agentos_sdk.calls import think
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op

MAX_INLINE_BYTES = 64 << 10  # bytes parsed in the event loop; larger bodies in a thread

T = TypeVar("T")


@frozen
class Events:
    """The parts of a streamed answer as a vendor's protocol writes them: its begin, a piece of its text, its end."""

    begin: bytes
    piece: Callable[[str], bytes]
    end: Callable[[Answer], bytes]


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


@frozen
class Answers:
    """Answers to the requests of one agent. ``reading`` limits the threads that parse large bodies of all agents."""

    caller: Caller
    allowance: Allowance
    reading: trio.CapacityLimiter

    async def read(self, exchange: Exchange, parse: Callable[[bytes], T]) -> T:
        """Parse the body of a request without blocking the event loop."""
        body = await exchange.body()
        if len(body) <= MAX_INLINE_BYTES:
            return parse(body)
        async with self.caller.turn:
            return await run_in_thread(parse, body, limiter=self.reading)

    async def think(self, question: Question, pieces: Counted | None = None) -> ThinkResult:
        """Make the agent's THINK call; the text is added to ``pieces`` as it arrives."""

        async def send(chunk: bytes) -> None:
            assert pieces is not None, "only a stream is sent in chunks"
            pieces.add(codec.decode(think.Delta, codec.parse(chunk)).delta)

        streams = pieces is not None
        call = Call(self.caller, streams=streams, send=send)
        self.caller.activity.begin_wait()
        try:
            thought = await self.caller.table.perform(Op.THINK, call, ThinkRequest(question, stream=streams))
        finally:
            self.caller.activity.end_wait()
        assert isinstance(thought, ThinkResult), "THINK's reply before it is encoded"
        return thought

    async def stream(self, exchange: Exchange, question: Question, events: Events) -> None:
        """Send the answer as it arrives. A ``CallError`` is raised at its end; the response may have begun by then."""
        pieces = Counted(allowance=self.allowance)

        async def ask() -> None:
            try:
                thought = await self.think(question, pieces)
            except CallError as error:
                pieces.end_with(error)
            else:
                pieces.end_with(thought)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await _send_events(exchange, events, pieces)
        finally:
            pieces.take()
        if isinstance(pieces.outcome, CallError):
            raise pieces.outcome


async def _send_events(exchange: Exchange, events: Events, pieces: Counted) -> None:
    text, told = await pieces.next(), 0
    if not text and isinstance(pieces.outcome, CallError):  # the status can still be an error
        return
    await exchange.begin(200, "text/event-stream", [("cache-control", "no-cache")])
    await exchange.write(events.begin)
    while text:
        told += len(text)
        await exchange.write(events.piece(text))
        text = await pieces.next()
    if isinstance(pieces.outcome, ThinkResult):
        answer = pieces.outcome.answer
        if rest := answer.text[told:]:
            await exchange.write(events.piece(rest))
        await exchange.write(events.end(answer))
        await exchange.end()
