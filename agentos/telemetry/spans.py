"""Spans of calls and of agents' lives, queued until they are exported. Imports nothing of OpenTelemetry."""

import json
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import trio
from attrs import define, field
from msgspec import Struct

from agentos.access.think_request import ThinkRequest
from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.kernel.call_counts import OK, outcome_of
from agentos.kernel.caller import Caller
from agentos.kernel.internal_errors import internal
from agentos.llm.line import Line
from agentos.llm.queue.request import ThinkResult
from agentos.services.events import AgentExited, AgentOver, AgentSpawned, Event
from agentos.services.http.secrets import Redactor
from agentos_sdk.opcodes import op_name

MAX_QUEUED = 2048  # spans that wait for their export; further ones are dropped, and counted
MAX_BATCH = 512  # spans that are exported together
MAX_CONTENT = 8192  # characters of a question, and of an answer
MESSAGE_COST = 64  # characters that each message counts for

Value = str | int | float | bool | Sequence[str]


class SpanId(Struct, frozen=True):
    """Ids of a span and of its trace; a tree of lives is one trace."""

    trace: int
    span: int


class Span(Struct, frozen=True):
    """Times are nanoseconds since the epoch. ``sends``: to a model, outside the kernel. ``failed`` is an error code."""

    id: SpanId
    parent: SpanId | None
    name: str
    began: int
    ended: int
    attributes: Mapping[str, Value]
    sends: bool = False
    failed: str | None = None


class Life(Struct, frozen=True):
    """An agent's present life, or its last."""

    id: SpanId
    parent: SpanId | None
    began: int
    number: int


@define(eq=False)
class Spans:
    """Makes spans in the event loop. With ``contents`` they have questions and answers, with secrets redacted."""

    registry: Registry
    line: Line
    contents: bool
    dropped: int = 0
    _queue: deque[Span] = field(factory=deque)
    _many: trio.Event = field(factory=trio.Event)  # set while a whole batch waits
    _lives: dict[int, Life] = field(factory=dict)  # by agent id, until the agent has ended for good

    async def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as there is a whole batch."""
        with trio.move_on_after(seconds):
            await self._many.wait()

    def take(self) -> Sequence[Span]:
        """Remove and return the oldest spans, at most :data:`MAX_BATCH`."""
        taken = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
        if len(self._queue) < MAX_BATCH and self._many.is_set():
            self._many = trio.Event()
        return taken

    def take_event(self, event: Event) -> None:
        """Begin and end the spans of lives."""
        if isinstance(event, AgentSpawned):
            agent = self.registry.get(event.agent_id)
            above = self._lives.get(agent.parent.id) if agent is not None and agent.parent is not None else None
            parent = above.id if above is not None else None
            lives = agent.lives if agent is not None else 1
            self._lives[event.agent_id] = Life(make_id(parent), parent, time.time_ns(), lives)
        elif isinstance(event, AgentExited) and (life := self._lives.get(event.agent_id)) is not None:
            attributes = {**describe_agent(event.agent_id, event.name), "gen_ai.operation.name": "invoke_agent"}
            attributes |= {"agentos.life": life.number, "agentos.end": event.reason}
            name = f"invoke_agent {event.name}"
            self._put(Span(life.id, life.parent, name, life.began, time.time_ns(), attributes))
        elif isinstance(event, AgentOver):
            self._lives.pop(event.agent_id, None)

    def begin(self, call: Call | None) -> int:
        """Nanoseconds since the epoch; see :class:`agentos.kernel.steps.Observer`."""
        return time.time_ns()

    def pass_by(self, caller: Caller, op: int, body: bytes, answer: bytes) -> None:
        """No span."""

    def miss(self, caller: Caller, what: str) -> None:
        """No span."""

    def end(self, caller: Caller, op: int, request: Any, outcome: object, answer: bytes | None, began: int) -> None:
        """Queue the span of a call that has ended."""
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        try:
            self._put(self._describe_call(caller, op, request, outcome, began))
        except Exception as bug:  # it is no failure of the call
            internal(bug, "the span of a call")

    def _describe_call(self, caller: Caller, op: int, request: Any, outcome: object, began: int) -> Span:
        failed = outcome_of(outcome) if isinstance(outcome, BaseException) else None
        life = self._lives.get(caller.id)
        parent = life.id if life is not None else None
        call = op_name(op)
        attributes: dict[str, Value] = {"agentos.call": call, "agentos.code": failed or OK}
        attributes |= describe_agent(caller.id, caller.name) if caller.kind == "agent" else {}
        attributes["agentos.caller.kind"] = caller.kind
        name, sends = call, isinstance(request, ThinkRequest)
        if sends:
            attributes |= self._describe_question(request) | self._describe_answer(request, outcome)
            name = f"chat {request.question.model}".strip()
        return Span(make_id(parent), parent, name, began, time.time_ns(), attributes, sends, failed)

    def _describe_question(self, request: ThinkRequest) -> dict[str, Value]:
        question = request.question
        found: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self.line.provider_of(question.model),
            "gen_ai.request.model": question.model,
            "gen_ai.request.stream": request.stream,
        }
        for name in ("max_tokens", "temperature"):
            if (value := getattr(question, name)) is not None:
                found[f"gen_ai.request.{name}"] = value
        if self.contents:
            turns = [(one.role, one.text) for one in question.messages]
            found["gen_ai.input.messages"] = self._describe_messages(turns)
            if question.system is not None:
                found["gen_ai.system_instructions"] = self._describe_messages([("system", question.system)])
        return found

    def _describe_answer(self, request: ThinkRequest, outcome: object) -> dict[str, Value]:
        if not isinstance(outcome, ThinkResult):
            return {}
        answer, used = outcome.answer, outcome.answer.usage
        found: dict[str, Value] = {
            "gen_ai.provider.name": self.line.provider_of(outcome.model),
            "gen_ai.response.model": answer.model,
            "gen_ai.response.finish_reasons": [str(answer.finish_reason)],
            "gen_ai.usage.input_tokens": used.input,
            "gen_ai.usage.cache_read.input_tokens": used.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": used.cache_creation,
            "gen_ai.usage.output_tokens": used.generated,
            "gen_ai.usage.reasoning.output_tokens": used.thinking,
            "agentos.waiting_seconds": outcome.queued,
            "agentos.provider_seconds": outcome.latency,
        }
        if outcome.cost is not None:
            found["agentos.cost"] = outcome.cost
        if self.contents:
            found["gen_ai.output.messages"] = self._describe_messages([("assistant", answer.text)])
        return found

    def _describe_messages(self, turns: Sequence[tuple[str, str]]) -> str:
        """The last messages, :data:`MAX_CONTENT` characters in all, as JSON by OpenTelemetry's conventions."""
        kept, left = [], MAX_CONTENT
        secrets = (*self.line.contents.keys, *self.line.contents.list_secrets())
        for role, text in reversed(turns):
            if left <= 0:
                break
            shown = Redactor(secrets).redact_cut(text, left).encode(errors="replace").decode()
            kept.append({"role": role, "parts": [{"type": "text", "content": shown}]})
            left -= len(text) + MESSAGE_COST
        return json.dumps(kept[::-1])

    def _put(self, span: Span) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._queue.append(span)
        if len(self._queue) == MAX_BATCH:
            self._many.set()


def make_id(parent: SpanId | None) -> SpanId:
    """A new id, in the parent's trace if there is one."""
    trace = parent.trace if parent is not None else random.getrandbits(128) or 1
    return SpanId(trace, random.getrandbits(64) or 1)


def describe_agent(number: int, name: str) -> dict[str, Value]:
    return {"gen_ai.agent.id": str(number), "gen_ai.agent.name": name}
