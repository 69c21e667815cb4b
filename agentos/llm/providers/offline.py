"""Offline provider: answers by rules from a file, else with a labelled echo; uses no network and no model.

The same requests in the same order get the same answers and the same faults.
"""

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Any

import trio
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.llm.answers.called_tools import read_arguments
from agentos.llm.answers.schema_example import UnsupportedSchema, smallest_value
from agentos.llm.answers.vectors import pack_vector
from agentos.llm.settings import OfflineSettings
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import ToolCall, Usage

from .offline_rules import CallTemplate, Rule, fill_references
from .provider import (
    CHARACTERS_PER_TOKEN,
    Answer,
    Delta,
    Denied,
    Failing,
    FinishReason,
    MalformedCall,
    Message,
    OnDelta,
    Provider,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
    estimate_input_tokens,
    estimate_tokens,
)

LABEL = "[offline echo, no model was asked]"
DIMENSIONS = 256  # of an embedding, if the request names none
MAX_DIMENSIONS = 4096
MAX_EMBEDDED = 4096  # characters of a text that its embedding depends on: they take 1 ms
MAX_ECHO = 1000  # characters of a message that an echo repeats
WORD = re.compile(r"\S+\s*|\s+")  # with the space behind it
NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


class OfflineReply(Struct, frozen=True):
    """The result of a request: a text, then calls or a ``failure``."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    finish_reason: FinishReason = "stop"
    failure: ProviderError | None = None

    @property
    def unseen(self) -> int:
        """Characters that the calls would have in a stream."""
        return sum(len(call.name) + len(json.dumps(call.arguments)) for call in self.calls)


@define(eq=False)
class Offline(Provider):
    """A provider without a network. ``rules``: see :func:`~agentos.llm.providers.offline_rules.read_rules`."""

    settings: OfflineSettings = OfflineSettings()
    rules: Sequence[Rule] = ()
    _asked: int = 0
    _applied: Counter[int] = field(factory=Counter)  # how often, by the rule's index

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        """Answer word by word, as slowly as the settings say."""
        self._asked += 1
        fault = self._random_fault(self._asked)
        reply = (
            OfflineReply(failure=fault)
            if fault
            else _cut_to_limits(self._choose_reply(question, self._asked), question)
        )
        tokens = estimate_input_tokens(question)
        if reply.text or reply.failure is None:  # a failure without a text is a refusal, which costs nothing
            on_delta(Delta(accepted=True))

        time = trio.current_time() + self.settings.base
        if reply.text or reply.calls:
            time += self.settings.per_input * tokens
        await trio.sleep_until(time)
        for word in WORD.finditer(reply.text):
            time += self._seconds(len(word[0]))
            await trio.sleep_until(time)
            on_delta(Delta(word[0]))
        if reply.failure is not None:
            raise reply.failure
        if reply.calls:
            await trio.sleep_until(time + self._seconds(reply.unseen))
            on_delta(Delta(unseen=reply.unseen))
        usage = Usage(tokens, estimate_tokens(len(reply.text) + reply.unseen))
        return Answer(reply.text, usage, reply.finish_reason, question.model, reply.calls)

    async def embed(self, question: Question, on_delta: OnDelta) -> Answer:
        """Vectors that only depend on the words of each text: those of texts with many words in common are close."""
        tokens = estimate_input_tokens(question)
        on_delta(Delta(accepted=True))
        await trio.sleep(self.settings.base + self.settings.per_input * tokens)
        dimensions = question.dimensions or DIMENSIONS
        if dimensions > MAX_DIMENSIONS:
            raise Rejected(f"dimensions: expected at most {MAX_DIMENSIONS}, got {dimensions}")
        vectors = []
        for message in question.messages:
            vectors.append(_embed(message.text[:MAX_EMBEDDED], dimensions))
            await trio.lowlevel.checkpoint()
        return Answer("", Usage(tokens), "embedded", question.model, vectors=vectors)

    async def aclose(self) -> None:
        """Nothing to close."""
        await trio.lowlevel.checkpoint()

    def _seconds(self, characters: int) -> float:
        return characters / CHARACTERS_PER_TOKEN * self.settings.per_output

    def _random_fault(self, number: int) -> ProviderError | None:
        dice = Random(f"{self.settings.seed} {number}")  # noqa: S311 - no secrets are involved
        if dice.random() >= self.settings.faults:
            return None
        why = f"the offline provider lets request {number} fail, as its seed says"
        return dice.choice([RateLimited, Failing])(why)

    def _choose_reply(self, question: Question, number: int) -> OfflineReply:
        for place, rule in enumerate(self.rules):
            if rule.times is not None and self._applied[place] >= rule.times:
                continue
            if (found := rule.match_question(question)) is not None:
                self._applied[place] += 1
                return _reply_by_rule(rule, f"rule[{place}]", found, question, number)
        try:
            return _echo(question, number)
        except UnsupportedSchema as error:
            what = "a tool call" if question.tool_choice == "required" else "response_schema"
            return OfflineReply(
                failure=Rejected(f"no rule fits, and the offline echo has no answer for {what}: {error}")
            )


def _reply_by_rule(rule: Rule, name: str, found: re.Match[str], question: Question, number: int) -> OfflineReply:
    why = f"the offline provider fails, as {name} says"
    calls = tuple(
        ToolCall(f"call_{number}_{place}", call.name, _arguments(call, found, question))
        for place, call in enumerate(rule.tool_calls)
    )
    failure: ProviderError | None = None
    match rule.fail:
        case "slow_down":
            failure = RateLimited(why, rule.after)
        case "failing":
            failure = Failing(why, rule.after)
        case "denied":
            failure = Denied(why)
        case "rejected":
            failure = Rejected(why)
        case "malformed_call":
            failure = MalformedCall(f"{why}: it")
    text = fill_references(found, rule.reply)
    return OfflineReply(text, calls, rule.finish_reason or ("tool_calls" if calls else "stop"), failure)


def _arguments(call: CallTemplate, found: re.Match[str], question: Question) -> Mapping[str, Any] | Text:
    """Arguments with their references filled in; a text becomes a number if the tool's schema asks for one."""
    arguments: Any = fill_references(found, call.arguments)
    if isinstance(arguments, str) and isinstance(arguments := read_arguments(arguments), str):
        return arguments
    assert isinstance(arguments, dict)
    tool = next((tool for tool in question.tools if tool.name == call.name), None)
    properties = tool.parameters.get("properties") if tool is not None else None
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        text = arguments.get(name)
        if isinstance(text, str) and isinstance(schema, Mapping):
            arguments[name] = _number(text, schema.get("type"))
    return arguments


def _number(text: str, kind: object) -> int | float | str:
    found = NUMBER.fullmatch(text)
    if found and kind in ("integer", "number") and not found[1]:
        return int(text)
    return float(text) if found and kind == "number" else text


def _echo(question: Question, number: int) -> OfflineReply:
    """The label and the last message, or the smallest answer that the request allows."""
    if question.tool_choice == "required":
        return OfflineReply(calls=(_smallest_call(question, number),), finish_reason="tool_calls")
    if question.response_schema is not None:
        return OfflineReply(json.dumps(smallest_value(question.response_schema, LABEL), ensure_ascii=False))
    last = question.messages[-1] if question.messages else Message("user")
    text = last.text if len(last.text) <= MAX_ECHO else f"{last.text[:MAX_ECHO]}…"
    images = f"[{len(last.images)} image{'s' * (len(last.images) > 1)}]" if last.images else ""
    return OfflineReply(" ".join(part for part in (LABEL, text, images) if part))


def _smallest_call(question: Question, number: int) -> ToolCall:
    if not question.tools:
        raise UnsupportedSchema("", "there is no tool that could be called")
    tool = question.tools[0]
    arguments = smallest_value(tool.parameters, LABEL)
    if not isinstance(arguments, Mapping):
        raise UnsupportedSchema("", f"the parameters of {tool.name} are no object")
    return ToolCall(f"call_{number}_0", tool.name, arguments)


def _embed(text: str, dimensions: int) -> bytes:
    """Each word adds 1 or -1 in a dimension chosen by its hash; the sum has the length 1."""
    numbers = array("f", bytes(4 * dimensions))
    for word in text.lower().split() or [""]:
        number = int.from_bytes(sha256(word.encode()).digest()[:8])
        numbers[(number >> 1) % dimensions] += 1 if number & 1 else -1
    length = math.hypot(*numbers)
    return pack_vector(array("f", [each / length for each in numbers] if length else [1.0, *numbers[1:]]))


def _cut_to_limits(reply: OfflineReply, question: Question) -> OfflineReply:
    """Cut the text off at a stop sequence and at ``max_tokens``."""
    ends = [end for stop in question.stop if stop and (end := reply.text.find(stop)) >= 0]
    if ends:
        reply = replace(reply, text=reply.text[: min(ends)])
    if question.max_tokens is None or estimate_tokens(len(reply.text) + reply.unseen) <= question.max_tokens:
        return reply
    return replace(
        reply, text=reply.text[: question.max_tokens * CHARACTERS_PER_TOKEN], calls=(), finish_reason="length"
    )
