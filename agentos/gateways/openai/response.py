"""Responses of the OpenAI-compatible endpoint as JSON: answers, stream chunks and errors. No I/O, no clock."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from agentos.llm.providers.provider import Answer
from agentos_sdk import codec
from agentos_sdk.errors import CallError, PermissionDenied
from agentos_sdk.values import ToolCall, Usage

STATUS = {  # by a call error's code; 500 for the others
    "bad_request": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "approval_required": 403,
    "approval_refused": 403,
    "not_found": 404,
    "too_large": 413,
    "busy": 429,
    "quota_exceeded": 429,
    "unavailable": 503,
    "cancelled": 503,
    "timeout": 504,
}
OPENAI_CODES = {"busy": "rate_limit_exceeded", "quota_exceeded": "insufficient_quota"}  # OpenAI's names of our codes
UPSTREAM_STATUS = {  # by the status of the provider's error response: the status here, and OpenAI's code
    401: (401, "invalid_api_key"),
    402: (429, "insufficient_quota"),
    403: (403, "permission_denied"),
    404: (404, "model_not_found"),
    422: (422, "invalid_request"),
    429: (429, "rate_limit_exceeded"),
}
CREDENTIAL_STATUS = (401, 402, 403)  # statuses about the kernel's own credentials, which are not shown to the agent
BUSY_RETRY_SECONDS = 1  # seconds after which to retry when the queue is full

Headers = Sequence[tuple[str, str]]


class InvalidKey(PermissionDenied):
    """The request lacks the API key of this port, or has a wrong one."""

    code = "invalid_api_key"


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
            "message": {**message, **({"tool_calls": calls} if calls else {})},
            "logprobs": None,
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
            said.append(self._chunk(answer.model, {"tool_calls": calls}))
        said.append(_with_logprobs(self._chunk(answer.model, {}, answer.finish_reason), answer.logprobs))
        if self.include_usage:
            head = self._head("chat.completion.chunk", answer.model)
            said.append(_event(codec.encode({**head, "choices": [], "usage": _usage(answer.usage, cost)})))
        return b"".join([*said, _event(b"[DONE]")])

    def broken_off(self, error: CallError) -> bytes:
        return broken_off(error)

    def _chunk(self, model: str, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event(codec.encode({**self._head("chat.completion.chunk", model), "choices": [choice]}))

    def _head(self, kind: str, model: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": model}


def model(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "agentos"}


def status(error: CallError) -> int:
    upstream = _upstream(error)
    return upstream[0] if upstream is not None else STATUS.get(error.code, 500)


def refusal(error: CallError) -> dict[str, object]:
    number, upstream = status(error), _upstream(error)
    code = upstream[1] if upstream is not None else OPENAI_CODES.get(error.code, error.code)
    kind = "invalid_request_error" if number < 429 else "server_error" if number >= 500 else code
    told = {
        "message": _message(error),
        "type": kind,
        "param": "model" if code == "model_not_found" else error.details.get("param"),
        "code": code,
    }
    return {"error": told}


def _upstream(error: CallError) -> tuple[int, str] | None:
    """The status and code for an error of the kernel's provider; ``None`` for other errors."""
    said = error.details.get("upstream_status")
    return UPSTREAM_STATUS.get(said) if isinstance(said, int) else None


def _message(error: CallError) -> str:
    said = error.details.get("upstream_status")
    if said in CREDENTIAL_STATUS:
        return f"the provider of the kernel's model refuses the kernel itself ({said}): its operator has to mend that"
    return str(error)


def broken_off(error: CallError) -> bytes:
    """The last event of a stream that ends with an error."""
    return _event(codec.encode(refusal(error)))


def advice(error: CallError, now: float) -> Headers:
    """Headers that say when to retry. The kernel has retried already, so only a full queue allows a retry."""
    if error.code == "busy":
        return [("retry-after", str(BUSY_RETRY_SECONDS))]
    again = [("x-should-retry", "false")]  # otherwise OpenAI's own SDK would retry, at 429 and from 500 on
    worth_it = error.details.get("renews_at", error.details.get("until"))  # seconds since the epoch
    if isinstance(worth_it, int | float):
        again.append(("retry-after", str(max(1, math.ceil(worth_it - now)))))
    if error.code == "invalid_api_key":
        again.append(("www-authenticate", "Bearer"))
    return again


def _call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": function_of(call), **signature_of(call)}


def function_of(call: ToolCall) -> dict[str, object]:
    return {"name": call.name, "arguments": codec.encode(call.arguments).decode()}


def signature_of(call: ToolCall) -> dict[str, object]:
    """The fields of a call that its program has to send back unchanged, if the model wants any."""
    return {"extra_content": {"google": {"thought_signature": call.signature}}} if call.signature else {}


def _usage(usage: Usage, cost: float | None) -> dict[str, object]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.generated,
        "total_tokens": usage.total,
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
