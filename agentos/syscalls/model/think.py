"""THINK and LLM_REPORT: queue a question for the model and build the reply from the answer."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Final

import trio
from attrs import frozen
from msgspec import structs

from agentos.access.think_request import MAX_INLINE_BYTES, ThinkRequest, digest_question, parse_think
from agentos.kernel.background import Background
from agentos.kernel.call import Call, Gone
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.replies import encode_in_turns
from agentos.kernel.wire.text_buffer import TextBuffer
from agentos.llm.answers.contents import Asker
from agentos.llm.line import Line
from agentos.llm.models.routes import LONG_SPELLING, Route, plain_model_name
from agentos.llm.providers.provider import Question
from agentos.llm.queue.classes import check_class
from agentos.llm.queue.request import ThinkResult, validate_question
from agentos.llm.settings import QueuePath
from agentos.permissions.approvals.text import describe_message
from agentos.services.quotas import OF_MODEL
from agentos_sdk.calls import think as calls
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError, Timeout
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Fallback

FAILURE = {"content": "", "tokens": 0}
PLAIN: Final = Question("", ())
SHOWN_AS_TEXTS: Final = frozenset(
    {"model", "messages", "system", "system_blocks", "tools", "marked_tools", "cache_mark", "size"}
)
MAX_DIGESTED_INLINE = 64 << 10  # bytes of a question whose digest is computed in the event loop, in 0.2 ms


@frozen
class Thinking:
    """Answers THINK and LLM_REPORT."""

    line: Line
    queue_path: Callable[[Caller], QueuePath]
    background: Background
    most: int  # bytes of a body

    async def parse(self, caller: Caller, body: bytes) -> ThinkRequest:
        if len(body) <= MAX_INLINE_BYTES:
            return parse_think(body, self.line.model)
        return await caller.table.reader.run(caller, parse_think, body, self.line.model)

    async def prepare(self, caller: Caller, request: ThinkRequest) -> Prepared:
        question = request.question
        if question.model.startswith(LONG_SPELLING):
            question = question.for_model(plain_model_name(question.model), question.max_tokens)
        validate_question(question)  # before anything looks at each of its parts
        route, rights = find_route(caller, self.line.routes.resolve(question.model))

        async def act(call: Call) -> ThinkResult:
            path = self.queue_path(caller)
            check_class(request.class_, "class", path)
            if request.stream:
                call.require_stream("stream")
            if question.size > MAX_DIGESTED_INLINE:
                digest = await caller.table.reader.run(caller, digest_question, question)
            else:
                digest = digest_question(question)
            asked = f"question sha256:{digest}"
            left_out = f"; left out: {', '.join(request.left_out)}" if request.left_out else ""
            call.remark = asked + left_out
            asker = Asker(caller.id, caller.name, caller.family, digest) if caller.kind != "operator" else None
            think = partial(self.line.think, path, question, asker=asker, route=route, class_=request.class_)
            if request.stream:
                think = partial(stream_answer, call, think)
            with trio.move_on_after(math.inf if request.timeout is None else request.timeout):
                thought = await think()
                call.remark = describe_thought(thought, self.line.currency, asked) + left_out
                return thought
            raise Timeout(f"the model hasn't answered within the {request.timeout:g} s that timeout names")

        return Prepared(rights, act, shown=partial(describe_question, question))

    def prepare_report(self, caller: Caller, request: calls.LLMReport) -> Prepared:
        def act(caller: Caller) -> calls.Reported:
            path = self.queue_path(caller)
            used_up = any(one.left <= 0 and one.quota.what in OF_MODEL for one in self.line.budget_states(path))
            return calls.Reported(tokens=self.line.usage_of(path).usage.total, quota_exceeded=used_up)

        return Prepared((Right("llm_report"),), act)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(
                Op.THINK,
                None,
                parse=self.parse,
                prepare=self.prepare,
                encode=encode_reply,
                limit=self.most,
                failure=FAILURE,
                audit="outcome",
                background=self.background,
            ),
            Syscall(Op.LLM_REPORT, calls.LLMReport, prepare=self.prepare_report),
        )


async def encode_reply(caller: Caller, thought: ThinkResult) -> bytes:
    await caller.allowance.wait_for_reply_room()  # a caller that doesn't read its replies gets no more of them
    return await encode_in_turns(build_reply(thought))


def find_route(caller: Caller, route: Route) -> tuple[Route, Sequence[Right]]:
    """The models of a route that rules allow the caller, and the rights that the call needs.

    If none is allowed, it is the first one about which a person is asked, else the first one, which is denied.
    """
    rights = [Right("think", model) for model in route.models]
    if len(rights) == 1:
        return route, rights
    decisions = {right: caller.authorizer.decide(caller, right) for right in rights}
    allowed = [right for right in rights if decisions[right].effect == "allow"]
    asked = [right for right in rights if decisions[right].effect == "ask"]
    usable = allowed or asked[:1] or rights[:1]
    passed = [Fallback(str(right.object), decisions[right].reason) for right in rights if right not in usable]
    return Route(route.name, [str(right.object) for right in usable], passed), usable


def describe_question(question: Question) -> str:
    """What a person sees of a question: all that goes to the model, of images their digests."""
    texts = [("system", question.system)] if question.system is not None else []
    for message in question.messages:
        texts.append((message.role, message.text))
        if message.answers is not None:
            texts.append(("which answers the call", message.answers))
        for image in message.images:
            digest = sha256(image.data).hexdigest()
            texts.append(("with an image", f"{image.mime_type}, {len(image.data)} bytes, sha256 {digest}"))
        texts += [("with a call of a tool", codec.encode(call).decode()) for call in message.calls]
    texts += [("with a tool", codec.encode(tool).decode()) for tool in question.tools]
    fields = [
        (name, codec.encode(value).decode())
        for name, value in structs.asdict(question).items()
        if name not in SHOWN_AS_TEXTS and value != getattr(PLAIN, name)
    ]
    return describe_message("THINK with", question.model, texts, fields)


def describe_thought(thought: ThinkResult, currency: str, asked: str) -> str:
    """For the audit log: ``in 12, out 340, cost 0.00021 USD, question ..., queued 0.1 s``, and what became of an alias.

    The cost is null without a price.
    """
    used = thought.answer.usage
    cost = "null" if thought.cost is None else f"{thought.cost:.10g} {currency}"
    waited = "from the cache" if thought.cached else f"queued {thought.queued:.3f} s"
    parts = [f"in {used.input}, out {used.generated}, cost {cost}, {asked}, {waited}"]
    if thought.bound is not None:
        parts.append(thought.bound)
    if thought.requested_model is not None:
        passed = "".join(f", not {each.model}: {each.reason}" for each in thought.fallbacks)
        parts.append(f"{thought.requested_model} was {thought.model}{passed}")
    return "; ".join(parts)


def build_reply(thought: ThinkResult) -> calls.Thought:
    answer = thought.answer
    return calls.Thought(
        content=codec.Text(answer.text),
        tokens=answer.usage.total,
        model=answer.model,
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        tool_calls=answer.calls,
        queued_ms=round(thought.queued * 1000, 3),
        latency_ms=round((thought.queued + thought.latency) * 1000, 3),
        cached=thought.cached,
        requested_model=thought.requested_model,
        fallbacks=thought.fallbacks,
        cost=thought.cost,
        context=thought.context,
    )


async def stream_answer(call: Call, ask: Callable[[Callable[[str], None]], Awaitable[ThinkResult]]) -> ThinkResult:
    """Ask, and send each piece of the answer as it arrives; all pieces are sent on return."""
    pieces = TextBuffer()
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
