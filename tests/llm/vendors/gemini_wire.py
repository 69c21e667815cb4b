"""Gemini's ``streamGenerateContent``, as a server sees it."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentos.llm.answers.called_tools import object_of
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.values import Tool, ToolCall, ToolChoice, Usage

from .script import Called, Refuses, Says, Step, Text, Thoughts, Trouble

BASE = ""
FINISHED = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
CHOICES: Mapping[str, ToolChoice] = {"AUTO": "auto", "NONE": "none", "ANY": "required"}


def key(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-goog-api-key")


def wrong_key(key: str) -> Refuses:
    return Refuses(400, f"API key not valid: {key}", reason="API_KEY_INVALID")


def question(path: str, body: Mapping[str, Any]) -> Question:
    if embeds := re.fullmatch(r"/v1(?:beta)?/models/([^:/]+):batchEmbedContents", path):
        requests = body["requests"]
        texts = tuple(Message("user", each["content"]["parts"][0]["text"]) for each in requests)
        return Question(embeds[1], texts, embed=True, dimensions=requests[0].get("outputDimensionality"))
    found = re.fullmatch(r"/v1(?:beta)?/models/([^:/]+):streamGenerateContent\?alt=sse", path)
    assert found is not None, path
    config = _get(body, "generationConfig", {})
    system = _get(body, "systemInstruction")
    level = _get(_get(config, "thinkingConfig", {}), "thinkingLevel")
    choice = _get(_get(body, "toolConfig", {}), "functionCallingConfig", {}).get("mode", "AUTO")
    return Question(
        model=found[1],
        messages=tuple(message for content in body["contents"] for message in _messages(content)),
        system="".join(part["text"] for part in system["parts"]) if system else None,
        temperature=config.get("temperature"),
        max_tokens=_get(config, "maxOutputTokens"),
        thinking_level=level and level.lower(),
        tools=tuple(_tool(each) for tool in body.get("tools", ()) for each in _get(tool, "functionDeclarations", ())),
        tool_choice=CHOICES[choice],
        stop=tuple(_get(config, "stopSequences", ())),
        response_schema=_get(config, "responseJsonSchema"),
    )


def _messages(content: Mapping[str, Any]) -> Iterator[Message]:
    text, images, calls, answers = "", [], [], []
    for part in content["parts"]:
        text += part.get("text", "")
        if (data := _get(part, "inlineData")) is not None:
            images.append(Image(base64.urlsafe_b64decode(data["data"]), _get(data, "mimeType")))
        if (call := _get(part, "functionCall")) is not None:
            signature = _get(part, "thoughtSignature")
            calls.append(ToolCall(call.get("id", ""), call["name"], call.get("args", {}), signature))
        if (response := _get(part, "functionResponse")) is not None:
            value = response["response"]
            said = value["output"] if value.keys() == {"output"} else json.dumps(value)
            answers.append(Message("tool", said, answers=response.get("id", response["name"])))
    if answers:
        assert (text, calls) == ("", [])
        yield from answers
    else:
        yield Message("assistant" if content["role"] == "model" else "user", text, tuple(images), tuple(calls))


def _tool(declared: Mapping[str, Any]) -> Tool:
    return Tool(
        declared["name"], codec.Text(declared.get("description", "")), _get(declared, "parametersJsonSchema", {})
    )


def _get(body: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A field in camelCase or in snake_case: the SDK sends both."""
    return body.get(name, body.get(re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name), default))


def events(says: Says, body: Mapping[str, Any]) -> Iterator[bytes | Step]:
    for step in says.steps:
        match step:
            case Text(text):
                yield _event(says, parts=[{"text": text}])
            case Thoughts(text):
                yield _event(says, parts=[{"text": text, "thought": True}])
            case Called(call):
                function = {
                    "name": call.name,
                    "args": object_of(call.arguments),
                    **({"id": call.id} if call.id else {}),
                }
                signature = {"thoughtSignature": call.signature} if call.signature else {}
                yield _event(says, parts=[{"functionCall": function, **signature}])
            case Trouble(status, message):
                yield _sse(_error(Refuses(status, message)))
            case _:
                yield step
    if says.finish == "blocked":
        yield _sse({"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": says.model, **_usage(says.usage)})
    elif says.finish is not None:
        yield _event(says, parts=[{"text": ""}], finishReason=FINISHED.get(says.finish, says.finish))


def _event(says: Says, parts: list[Any], **more: str) -> bytes:
    """Usage stands in the last only, as some models do."""
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, **more}
    return _sse({"candidates": [candidate], "modelVersion": says.model, **(_usage(says.usage) if more else {})})


def _usage(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    counted = {"promptTokenCount": usage.input, "candidatesTokenCount": usage.output, "totalTokenCount": usage.total}
    more = {"thoughtsTokenCount": usage.thinking, "cachedContentTokenCount": usage.cache_read}
    return {"usageMetadata": {**counted, **{name: count for name, count in more.items() if count}}}


def refusal(refuses: Refuses) -> tuple[Mapping[str, str], bytes]:
    return {}, json.dumps(_error(refuses)).encode()


def _error(refuses: Refuses) -> Mapping[str, Any]:
    details: list[Mapping[str, Any]] = []
    if refuses.reason is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": refuses.reason})
    if refuses.after is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{refuses.after:g}s"})
    status = STATUS.get(refuses.status, "UNKNOWN")
    return {"error": {"code": refuses.status, "message": refuses.message, "status": status, "details": details}}


def _sse(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\r\n\r\n".encode()
