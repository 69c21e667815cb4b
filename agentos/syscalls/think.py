"""Handlers of THINK and LLM_REPORT: queue a question for the model and build the reply from the answer."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from agentos.kernel.call import Call, Gone
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.table import Syscall
from agentos.kernel.text_buffer import Pieces
from agentos.llm.jobs import ThinkResult
from agentos.llm.line import Line
from agentos.llm.settings import QueuePath
from agentos_sdk import codec
from agentos_sdk.calls import think as calls
from agentos_sdk.errors import CallError, Timeout
from agentos_sdk.opcodes import Op

from .think_request import AT_ONCE, understood

FAILURE = {"content": "", "tokens": 0}


def syscalls(line: Line, queue_path: Callable[[Caller], QueuePath], max_payload: int) -> tuple[Syscall, ...]:
    reading = trio.CapacityLimiter(1)  # several threads would slow down each other and the event loop

    async def think(call: Call, body: bytes) -> calls.Thought:
        if len(body) <= AT_ONCE:
            asked, question = understood(body, line.model)
        else:
            async with call.caller.turn:  # one caller's many bodies wait behind each other, and not others behind them
                asked, question = await trio.to_thread.run_sync(understood, body, line.model, limiter=reading)
        await call.require(Right("think", question.model))
        place = queue_path(call.caller)
        with trio.move_on_after(math.inf if asked.timeout is None else asked.timeout):
            if asked.stream:
                call.require_stream("stream")
                thought = await streamed(call, partial(line.think, place, question))
            else:
                thought = await line.think(place, question)
            if thought.bound is not None and call.record is not None:
                call.record.about += f" ({thought.bound})"
            await call.caller.allowance.wait_for_bytes()  # a caller that doesn't read its replies gets no more of them
            return reply_of(thought)
        raise Timeout(f"the model hasn't answered within the {asked.timeout:g} s that timeout names")

    async def rights(caller: Caller, body: bytes) -> Sequence[Right]:
        async with caller.turn:
            _, question = await trio.to_thread.run_sync(understood, body, line.model, limiter=reading)
        return [Right("think", question.model)]

    def report(caller: Caller, request: calls.LLMReport) -> calls.Reported:
        caller.check(Right("llm_report"))
        place = queue_path(caller)
        used_up = any(standing.left <= 0 for standing in line.budget_states(place))
        return calls.Reported(tokens=line.usage_of(place).usage.total, quota_exceeded=used_up)

    return (
        Syscall(Op.THINK, None, think, limit=max_payload, failure=FAILURE, audit="outcome", rights=rights),
        Syscall(Op.LLM_REPORT, calls.LLMReport, report),
    )


def reply_of(thought: ThinkResult) -> calls.Thought:
    answer = thought.answer
    used = answer.usage
    return calls.Thought(
        content=codec.Text(answer.text),
        tokens=used.total,
        model=answer.model,
        usage=calls.Usage(input=used.input, output=used.output, thinking=used.thinking),
        finish_reason=answer.finish_reason,
        tool_calls=[
            calls.ToolCall(id=call.id, name=call.name, arguments=call.arguments, signature=call.signature)
            for call in answer.calls
        ],
        queued_ms=round(thought.queued * 1000, 3),
        latency_ms=round((thought.queued + thought.latency) * 1000, 3),
    )


async def streamed(call: Call, ask: Callable[[Callable[[str], None]], Awaitable[ThinkResult]]) -> ThinkResult:
    """Ask, and send each piece of the answer as it arrives; all pieces are sent on return."""
    pieces = Pieces()
    failure: CallError | Gone | None = None
    thought: ThinkResult | None = None
    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            nonlocal failure
            try:
                while text := await pieces.next():
                    await call.send(codec.encode(calls.Delta(delta=codec.Text(text))))
            except Gone as gone:
                failure = gone
                nursery.cancel_scope.cancel()

        nursery.start_soon(deliver)
        try:
            thought = await ask(pieces.add)
        except CallError as error:
            failure = error
        pieces.end()
    if failure is not None:
        raise failure
    assert thought is not None, "an answer, or a failure"
    return thought
