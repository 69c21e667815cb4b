"""Responses of the Gemini-compatible endpoint as JSON: answers, pieces of streams, models and errors. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define

from agentos.gateways.error_status import error_text, status
from agentos.llm.answers.called_tools import object_of
from agentos.llm.providers.provider import Answer, FinishReason
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError
from agentos_sdk.values import ToolCall, Usage

from .fields import encode_signature

STATUS_NAMES = {  # by the status; INVALID_ARGUMENT for others below 500
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
FINISH_REASONS: Mapping[FinishReason, str] = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
}
METHODS = ("generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents")


@define(eq=False)
class Shape:
    """The responses to one request; ``in_events``: a stream is one of events, and no array."""

    id: str
    in_events: bool = True
    _begun: bool = False

    def whole(self, answer: Answer, cost: float | None = None) -> bytes:
        return codec.encode(self._last(answer, cost, answer.text))

    def begin(self, model: str) -> bytes:
        return b"" if self.in_events else b"["

    def piece(self, model: str, text: str) -> bytes:
        return self._event(self._response(model, [{"text": text}]))

    def end(self, answer: Answer, cost: float | None = None) -> bytes:
        """The last piece, with the calls, and the end of the stream."""
        return self._event(self._last(answer, cost, "")) + (b"" if self.in_events else b"]")

    def broken_off(self, error: CallError) -> bytes:
        return self._event(refusal(error)) + (b"" if self.in_events else b"]")

    def _last(self, answer: Answer, cost: float | None, text: str) -> Mapping[str, Any]:
        texts: Sequence[Mapping[str, Any]] = [{"text": text}] if text or not answer.calls else []
        parts = [*texts, *map(_call, answer.calls)]
        usage = {"usageMetadata": _usage(answer.usage, cost)}
        return {**self._response(answer.model, parts, finishReason=FINISH_REASONS[answer.finish_reason]), **usage}

    def _response(self, model: str, parts: Sequence[Mapping[str, Any]], **more: str) -> dict[str, Any]:
        candidate = {"content": {"parts": parts, "role": "model"}, **more, "index": 0}
        return {"candidates": [candidate], "modelVersion": model, "responseId": self.id}

    def _event(self, response: Mapping[str, Any]) -> bytes:
        data = codec.encode(response)
        if self.in_events:
            return b"data: %s\r\n\r\n" % data
        before, self._begun = b",\r\n" if self._begun else b"", True
        return before + data


def model(name: str) -> dict[str, object]:
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": METHODS}


def refusal(error: CallError, after: float | None = None) -> dict[str, object]:
    """Google's error, with the field that is wrong, and when to retry."""
    code = status(error)
    details: list[dict[str, object]] = []
    if "param" in error.details:
        violations = [{"field": error.details["param"], "description": str(error)}]
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations})
    if after is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{after:g}s"})
    name = STATUS_NAMES.get(code, "INVALID_ARGUMENT" if code < 500 else "INTERNAL")
    told = {"code": code, "message": error_text(error), "status": name}
    return {"error": {**told, "details": details} if details else told}


def _call(call: ToolCall) -> dict[str, object]:
    signature = {"thoughtSignature": encode_signature(call.signature)} if call.signature else {}
    return {"functionCall": {"id": call.id, "name": call.name, "args": object_of(call.arguments)}, **signature}


def _usage(usage: Usage, cost: float | None) -> dict[str, object]:
    cached = {"cachedContentTokenCount": usage.cache_read} if usage.cache_read else {}
    return {
        "promptTokenCount": usage.input,
        **cached,
        "candidatesTokenCount": usage.output,
        "thoughtsTokenCount": usage.thinking,
        "totalTokenCount": usage.total,
        **({} if cost is None else {"cost": cost}),
    }
