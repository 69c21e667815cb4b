"""Translates between LangChain's messages and those of THINK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

SIGNATURES = "agentos_signatures"  # in additional_kwargs: a provider's own data of a tool call, by the call's id


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """A message as THINK takes it; raises ``ValueError`` for content that THINK can't take."""
    match message:
        case SystemMessage():
            return {"role": "system", "content": str(message.text)}
        case HumanMessage():
            return {"role": "user", "content": _content(message)}
        case AIMessage():
            return _answer_fields(message)
        case ToolMessage():
            _check_text_only(message)
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": str(message.text)}
    raise ValueError(f"expected a system, human, AI or tool message, got one of type {message.type!r}")


def _answer_fields(message: AIMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": "assistant", "content": str(message.text)}
    signatures = message.additional_kwargs.get(SIGNATURES, {})
    if calls := [*message.tool_calls, *message.invalid_tool_calls]:
        fields["tool_calls"] = [
            {
                "id": call["id"] or f"call_{place}",
                "name": call["name"],
                "arguments": {} if call["args"] is None else call["args"],
                "signature": signatures.get(call["id"]),
            }
            for place, call in enumerate(calls)
        ]
    return fields


def _content(message: BaseMessage) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str):
        return message.content
    return [_part(dict(block), place) for place, block in enumerate(message.content_blocks)]


def _part(block: dict[str, Any], place: int) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": block["text"]}
    if kind == "image" and "base64" in block:
        return {"type": "image", "data": block["base64"], "mime_type": block.get("mime_type") or "image/jpeg"}
    if kind == "image":
        raise ValueError(f"content[{place}]: expected an image in base64: the kernel fetches none from elsewhere")
    raise ValueError(f"content[{place}]: expected text or an image, got a block of type {kind!r}")


def _check_text_only(message: BaseMessage) -> None:
    if isinstance(message.content, str):
        return
    for place, block in enumerate(message.content_blocks):
        if block.get("type") != "text":
            raise ValueError(f"content[{place}]: a tool's result has text only, got a block of type {block['type']!r}")


def usage_metadata(usage: Mapping[str, int]) -> UsageMetadata:
    """The tokens of an answer; those of thoughts count as output."""
    output = usage["output"] + usage["thinking"]
    return UsageMetadata(
        input_tokens=usage["input"],
        output_tokens=output,
        total_tokens=usage["input"] + output,
        input_token_details={name: usage.get(name, 0) for name in ("cache_read", "cache_creation")},
        output_token_details={"reasoning": usage["thinking"]},
    )


def response_metadata(thought: Mapping[str, Any]) -> dict[str, Any]:
    """What else the kernel says of an answer."""
    kept = ("finish_reason", "cost", "cached", "queued_ms", "latency_ms", "fallbacks")
    return {"model_name": thought["model"], "model_provider": "agentos", **{name: thought[name] for name in kept}}


def signatures(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``additional_kwargs`` of an answer with these calls."""
    found = {call["id"]: call["signature"] for call in calls if call.get("signature")}
    return {SIGNATURES: found} if found else {}
