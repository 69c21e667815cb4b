"""OpenAI's chat completions, as a server sees them."""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentos.llm.answers.called_tools import object_of, read_arguments
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.values import Tool, ToolCall, Usage

from .script import Called, Refuses, Says, Step, Text, Thoughts, Trouble

BASE = "/v1"


def key(headers: Mapping[str, str]) -> str | None:
    return headers.get("authorization", "").removeprefix("Bearer ")


def wrong_key(key: str) -> Refuses:
    stars = f"{key[:8]}{'*' * 9}{key[-4:]}"
    return Refuses(401, f"Incorrect API key provided: {stars}.", reason="invalid_api_key")


def question(path: str, body: Mapping[str, Any]) -> Question:
    if path == "/v1/embeddings":
        texts = tuple(Message("user", text) for text in body["input"])
        return Question(body["model"], texts, embed=True, dimensions=body.get("dimensions"))
    assert path == "/v1/chat/completions", path
    assert body["stream"] is True
    has_system = bool(body["messages"]) and body["messages"][0]["role"] == "system"
    messages = [_message(each) for each in body["messages"][int(has_system) :]]
    schema = body.get("response_format", {}).get("json_schema", {})
    return Question(
        model=body["model"],
        messages=tuple(messages),
        system=body["messages"][0]["content"] if has_system else None,
        temperature=body.get("temperature"),
        max_tokens=body.get("max_tokens", body.get("max_completion_tokens")),
        thinking_level=body.get("reasoning_effort"),
        tools=tuple(_tool(each["function"]) for each in body.get("tools", ())),
        tool_choice=body.get("tool_choice", "auto"),
        stop=tuple(body.get("stop", ())),
        response_schema=schema.get("schema"),
    )


def _message(message: Mapping[str, Any]) -> Message:
    content = message.get("content")  # a proxy leaves out null
    parts: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return Message(
        role=message["role"],
        text="".join(part["text"] for part in parts if part["type"] == "text"),
        images=tuple(_image(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"),
        calls=tuple(
            ToolCall(call["id"], call["function"]["name"], read_arguments(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ),
        answers=message.get("tool_call_id"),
    )


def _image(url: str) -> Image:
    head, data = url.removeprefix("data:").split(";base64,")
    return Image(base64.b64decode(data), head)


def _tool(function: Mapping[str, Any]) -> Tool:
    return Tool(function["name"], codec.Text(function.get("description", "")), function.get("parameters", {}))


def events(says: Says, body: Mapping[str, Any]) -> Iterator[bytes | Step]:
    if not body.get("stream"):
        yield from says.steps
        return
    yield _event(says, {"role": "assistant", "content": ""})
    number = -1
    for step in says.steps:
        match step:
            case Text(text):
                yield _event(says, {"content": text})
            case Thoughts(text):
                yield _event(says, {"reasoning_content": text})
            case Called(call):
                number += 1
                yield from _call(says, number, call)
            case Trouble(status, message):
                yield _sse({"error": {"message": message, "code": status, "type": "error"}})
            case _:
                yield step
    if says.finish is not None:
        yield _event(says, {}, "content_filter" if says.finish == "blocked" else says.finish)
        if says.usage is not None and body.get("stream_options", {}).get("include_usage"):
            yield _sse({**_head(says), "choices": [], "usage": _usage(says.usage)})
        yield b"data: [DONE]\n\n"


def _call(says: Says, number: int, call: ToolCall) -> Iterator[bytes]:
    """The arguments come in two pieces."""
    arguments = json.dumps(object_of(call.arguments))
    first = {"index": number, "type": "function", "function": {"name": call.name, "arguments": arguments[:3]}}
    yield _event(says, {"tool_calls": [{**first, **({"id": call.id} if call.id else {})}]})
    yield _event(says, {"tool_calls": [{"index": number, "function": {"arguments": arguments[3:]}}]})


def _event(says: Says, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    return _sse({**_head(says), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _head(says: Says) -> Mapping[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": says.model}


def _usage(usage: Usage) -> Mapping[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.generated,
        "total_tokens": usage.total,
        "completion_tokens_details": {"reasoning_tokens": usage.thinking},
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_creation},
    }


def refusal(refuses: Refuses) -> tuple[Mapping[str, str], bytes]:
    error = {"message": refuses.message, "type": "error", "param": None, "code": refuses.reason}
    after = {} if refuses.after is None else {"retry-after": f"{refuses.after:g}"}
    return after, json.dumps({"error": error}).encode()


def _sse(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
