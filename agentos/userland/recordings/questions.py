"""Recorded questions as requests of THINK that ask them anew. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

SAME = ("temperature", "max_tokens", "thinking_level", "tools", "tool_choice", "stop", "response_schema")
KNOWN = frozenset({*SAME, "model", "system", "messages", "stream", "timeout", "class", "async"})

Json = dict[str, Any]


class CantAsk(ValueError):
    """The question can't be asked anew; the text says why."""


def build_question(recorded: Mapping[str, Any]) -> tuple[Json, Sequence[str]]:
    """The request of THINK that asks a recorded question, and what THINK can't ask. Raises :class:`CantAsk`."""
    try:
        return _build(recorded), sorted(recorded.keys() - KNOWN)
    except (AttributeError, KeyError, TypeError):
        raise CantAsk("the recorded question was malformed, and refused") from None


def _build(recorded: Mapping[str, Any]) -> Json:
    messages = recorded.get("messages", ())
    if recorded.get("embed") or any(message.get("images") for message in messages):
        raise CantAsk(
            "it can't be asked anew: "
            + ("it asks for vectors" if recorded.get("embed") else "the recording has no images")
        )
    question: Json = {key: recorded[key] for key in SAME if recorded.get(key) is not None}
    if recorded.get("system") is not None:
        question["system_instruction"] = recorded["system"]
    return question | {"model": recorded.get("model", ""), "messages": [_build_message(one) for one in messages]}


def _build_message(message: Mapping[str, Any]) -> Json:
    made: Json = {"role": message["role"], "content": message.get("text", "")}
    if message.get("calls"):
        made["tool_calls"] = message["calls"]
    if message.get("answers") is not None:
        made["tool_call_id"] = message["answers"]
    return made
