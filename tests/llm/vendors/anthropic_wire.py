"""Anthropic's messages, as a server sees them."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentos.llm.answers.called_tools import object_of
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.values import Tool, ToolCall, ToolChoice, Usage

from .script import Called, Refuses, Says, Step, Text, Thoughts, Trouble

BASE = ""
FINISHED = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
TYPES = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "none": "none", "any": "required"}
SIGNATURE = "c2lnbmVk"


def key(headers: Mapping[str, str]) -> str | None:
    return headers.get("authorization", "").removeprefix("Bearer ")


def wrong_key(key: str) -> Refuses:
    return Refuses(401, f"invalid bearer token {key}")


def question(path: str, body: Mapping[str, Any]) -> Question:
    assert path == "/v1/messages", path
    assert body["stream"] is True
    assert type(body["max_tokens"]) is int
    output = body.get("output_config", {})
    return Question(
        model=body["model"],
        messages=tuple(message for turn in body["messages"] for message in _messages(turn)),
        system=_content(body["system"])[0] if "system" in body else None,
        temperature=body.get("temperature"),
        max_tokens=body["max_tokens"],
        thinking_level=output.get("effort"),
        tools=tuple(map(_tool, body.get("tools", ()))),
        tool_choice=CHOICES[body.get("tool_choice", {"type": "auto"})["type"]],
        stop=tuple(body.get("stop_sequences", ())),
        response_schema=output.get("format", {}).get("schema"),
    )


def _messages(turn: Mapping[str, Any]) -> Iterator[Message]:
    text, images, blocks = _content(turn["content"])
    assert text or blocks or images, "the content of a turn is not empty"
    results = [block for block in blocks if block["type"] == "tool_result"]
    for result in results:
        said, seen, _ = _content(result["content"])
        yield Message("tool", said, seen, answers=result["tool_use_id"])
    if not results:
        uses = [block for block in blocks if block["type"] == "tool_use"]
        calls = tuple(ToolCall(use["id"], use["name"], use["input"]) for use in uses)
        yield Message(turn["role"], text, images, calls)


def _content(content: str | Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Image], Sequence[Mapping[str, Any]]]:
    """The text, the images and the other blocks."""
    blocks: Sequence[Mapping[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    images = tuple(_image(block["source"]) for block in blocks if block["type"] == "image")
    return text, images, [block for block in blocks if block["type"] not in ("text", "image")]


def _image(source: Mapping[str, Any]) -> Image:
    assert source["type"] == "base64"
    return Image(base64.b64decode(source["data"]), source["media_type"])


def _tool(declared: Mapping[str, Any]) -> Tool:
    schema = declared["input_schema"]
    parameters = {} if schema == {"type": "object"} else schema
    return Tool(declared["name"], codec.Text(declared.get("description", "")), parameters)


def events(says: Says, body: Mapping[str, Any]) -> Iterator[bytes | Step]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": says.model, "content": []}
    began = {} if says.usage is None else {"usage": {**_input(says.usage), "output_tokens": 1}}
    yield _sse("message_start", message={**message, **began})
    yield _sse("ping")
    for number, step in enumerate(says.steps):
        match step:
            case Text(text):
                yield from _block(number, {"type": "text", "text": ""}, {"type": "text_delta", "text": text})
            case Thoughts(text):
                thought = {"type": "thinking_delta", "thinking": text}
                signed = {"type": "signature_delta", "signature": SIGNATURE}
                yield from _block(number, {"type": "thinking", "thinking": "", "signature": ""}, thought, signed)
            case Called(call):
                yield from _call(number, call)
            case Trouble(status, message_of_error):
                yield _sse("error", **_error(status, message_of_error))
            case _:
                yield step
    if says.finish is not None:
        finish = FINISHED.get("content_filter" if says.finish == "blocked" else says.finish, says.finish)
        ended = {} if says.usage is None else {"usage": _usage(says.usage)}
        yield _sse("message_delta", delta={"stop_reason": finish, "stop_sequence": None}, **ended)
        yield _sse("message_stop")


def _call(number: int, call: ToolCall) -> Iterator[bytes]:
    """The arguments come in two pieces."""
    arguments = json.dumps(object_of(call.arguments))
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in (arguments[:3], arguments[3:])]
    yield from _block(number, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, *pieces)


def _block(number: int, block: Mapping[str, Any], *deltas: Mapping[str, Any]) -> Iterator[bytes]:
    yield _sse("content_block_start", index=number, content_block=block)
    for delta in deltas:
        yield _sse("content_block_delta", index=number, delta=delta)
    yield _sse("content_block_stop", index=number)


def _input(usage: Usage) -> Mapping[str, Any]:
    five = usage.cache_creation - usage.cache_creation_1h
    kept = {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": usage.cache_creation_1h}
    return {
        "input_tokens": usage.input - usage.cache_read - usage.cache_creation,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_creation,
        "cache_creation": kept,
    }


def _usage(usage: Usage) -> Mapping[str, Any]:
    thinking = {"output_tokens_details": {"thinking_tokens": usage.thinking}} if usage.thinking else {}
    return {"output_tokens": usage.generated, **thinking}


def refusal(refuses: Refuses) -> tuple[Mapping[str, str], bytes]:
    after = {} if refuses.after is None else {"retry-after": f"{refuses.after:g}"}
    error = _error(refuses.status, refuses.message, refuses.reason)
    return after, json.dumps({"type": "error", **error, "request_id": "req_1"}).encode()


def _error(status: int, message: str, kind: str | None = None) -> Mapping[str, Any]:
    return {"error": {"type": kind or TYPES.get(status, "api_error"), "message": message}}


def _sse(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
