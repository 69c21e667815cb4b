"""Responses of the OpenAI-compatible endpoint as JSON: answers, stream chunks and errors. No I/O, no clock."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from agentos.gateways.error_status import error_text, status, upstream
from agentos.llm.providers.prompts.thoughts import call_fields, has_fields, message_fields
from agentos.llm.providers.provider import Answer
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError
from agentos_sdk.values import ToolCall, Usage

OPENAI_CODES = {"busy": "rate_limit_exceeded", "quota_exceeded": "insufficient_quota"}  # OpenAI's names of our codes


@frozen
class Shape:
    """The common fields of all responses to one request: ``id``, and ``created``, seconds since the epoch."""

    id: str
    created: int
    include_usage: bool = False  # at the end of the stream

    def whole(self, answer: Answer, cost: float | None = None) -> bytes:
        """The response without streaming: ``chat.completion``."""
        calls = [_call(call) for call in answer.calls]
        message = {"role": "assistant", "content": answer.text or (None if calls else ""), "refusal": None}
        choice = {
            "index": 0,
            "logprobs": None,  # before what a vendor has said, which may have such a field
            "message": {**message, **thoughts_of(answer), **({"tool_calls": calls} if calls else {})},
            "finish_reason": answer.finish_reason,
        }
        head = self._head("chat.completion", answer.model)
        return _with_logprobs(
            codec.encode({**head, "choices": [choice], "usage": _usage(answer.usage, cost)}), answer.logprobs
        )

    def begin(self, model: str) -> bytes:
        """The first chunk of a stream."""
        return self._chunk(model, {"role": "assistant", "content": ""})

    def piece(self, model: str, text: str) -> bytes:
        return self._chunk(model, {"content": text})

    def end(self, answer: Answer, cost: float | None = None) -> bytes:
        """The chunks after the text."""
        said = []
        if answer.calls:
            calls = [{"index": index, **_call(call)} for index, call in enumerate(answer.calls)]
            said.append(self._chunk(answer.model, {**thoughts_of(answer), "tool_calls": calls}))
        said.append(_with_logprobs(self._chunk(answer.model, {}, answer.finish_reason), answer.logprobs))
        if self.include_usage:
            head = self._head("chat.completion.chunk", answer.model)
            said.append(_event(codec.encode({**head, "choices": [], "usage": _usage(answer.usage, cost)})))
        return b"".join([*said, _event(b"[DONE]")])

    def broken_off(self, error: CallError) -> bytes:
        return _event(codec.encode(refusal(error)))

    def _chunk(self, model: str, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event(codec.encode({**self._head("chat.completion.chunk", model), "choices": [choice]}))

    def _head(self, kind: str, model: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": model}


def model(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "agentos"}


def refusal(error: CallError, after: float | None = None) -> dict[str, object]:
    number, at_provider = status(error), upstream(error)
    param = error.details.get("param")
    code = at_provider[1] if at_provider is not None else OPENAI_CODES.get(error.code, error.code)
    if error.code == "not_found" and param == "model":
        code = "model_not_found"
    kind = "invalid_request_error" if number < 429 else "server_error" if number >= 500 else code
    told = {
        "message": error_text(error),
        "type": kind,
        "param": "model" if code == "model_not_found" else param,
        "code": code,
    }
    return {"error": told}


def _call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": function_of(call), **signature_of(call)}


def function_of(call: ToolCall) -> dict[str, object]:
    is_text = isinstance(call.arguments, str)
    return {"name": call.name, "arguments": call.arguments if is_text else codec.encode(call.arguments).decode()}


def thoughts_of(answer: Answer) -> Mapping[str, Any]:
    """The fields of a message with calls that its program has to send back unchanged, as the vendor named them."""
    signature = answer.calls[0].signature if answer.calls else None
    return message_fields(signature) if has_fields(signature) else {}


def signature_of(call: ToolCall) -> Mapping[str, Any]:
    """The fields of a call that its program has to send back unchanged, if the model wants any."""
    if has_fields(call.signature):
        return call_fields(call.signature)
    return whole_signature_of(call)


def whole_signature_of(call: ToolCall) -> Mapping[str, Any]:
    """As :func:`signature_of`, with the fields of the message in it."""
    return {"extra_content": {"google": {"thought_signature": call.signature}}} if call.signature else {}


def _usage(usage: Usage, cost: float | None) -> dict[str, object]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.generated,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_creation},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking},
        **({} if cost is None else {"cost": cost}),
    }


def _with_logprobs(data: bytes, logprobs: bytes | None) -> bytes:
    """Insert the logprobs in place of the null in ``data``. Inside a string its quotes would be escaped."""
    if logprobs is None:
        return data
    return data.replace(b'"logprobs":null', b'"logprobs":{"content":%s,"refusal":null}' % logprobs, 1)


def _event(data: bytes) -> bytes:
    return b"data: %s\n\n" % data
