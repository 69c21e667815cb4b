"""Responses of the Anthropic-compatible endpoint as JSON: answers, stream events and errors. No I/O, no clock."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from attrs import define

from agentos.gateways.error_status import error_text, status
from agentos.llm.answers.called_tools import object_of
from agentos.llm.providers.provider import Answer, FinishReason
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError
from agentos_sdk.values import ToolCall, Usage

from .call_ids import join_call_id

ERROR_TYPES = {  # by the status
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",  # also at a stop sequence: providers don't say which
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


@define(eq=False)
class Shape:
    """The responses to one request. ``input_tokens`` is an estimate, for the begin of a stream."""

    id: str
    input_tokens: int
    _block: int = 0  # index of the content block of a stream that comes next
    _in_text: bool = False

    def whole(self, answer: Answer, cost: float | None = None) -> bytes:
        """The response without streaming."""
        texts = [{"type": "text", "text": answer.text}] if answer.text else []
        content = [*texts, *(_call(call, object_of(call.arguments)) for call in answer.calls)]
        return codec.encode(
            {**self._head(answer.model), "content": content, **_stop(answer), "usage": _usage(answer.usage, cost)}
        )

    def begin(self, model: str) -> bytes:
        """The first events of a stream."""
        cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}  # known at the end
        usage = {"input_tokens": self.input_tokens, **cached, "output_tokens": 0}
        message = {**self._head(model), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message) + _event("ping")

    def piece(self, model: str, text: str) -> bytes:
        start = b"" if self._in_text else self._start({"type": "text", "text": ""})
        self._in_text = True
        return start + self._delta({"type": "text_delta", "text": text})

    def end(self, answer: Answer, cost: float | None = None) -> bytes:
        """The events after the text."""
        said = [self._stop_block()] if self._in_text else []
        for call in answer.calls:
            said.append(self._start(_call(call, {})))
            arguments = codec.encode(object_of(call.arguments)).decode()
            said += [self._delta({"type": "input_json_delta", "partial_json": arguments}), self._stop_block()]
        said.append(_event("message_delta", delta=_stop(answer), usage=_usage(answer.usage, cost)))
        return b"".join([*said, _event("message_stop")])

    def broken_off(self, error: CallError) -> bytes:
        return b"event: error\ndata: %s\n\n" % codec.encode(refusal(error))

    def _head(self, model: str) -> dict[str, object]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": model}

    def _start(self, block: Mapping[str, object]) -> bytes:
        return _event("content_block_start", index=self._block, content_block=block)

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)

    def _stop_block(self) -> bytes:
        self._block += 1
        return _event("content_block_stop", index=self._block - 1)


def list_models(names: Sequence[str], created: int) -> dict[str, object]:
    """A page with all models. ``created`` is in seconds since the epoch."""
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
    return {"data": [model(name, created) for name in names], "has_more": False, **ends}


def model(name: str, created: int) -> dict[str, object]:
    at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": at, "lifecycle": "active"}


def refusal(error: CallError, after: float | None = None) -> dict[str, object]:
    kind = ERROR_TYPES.get(status(error), "api_error")
    return {"type": "error", "error": {"type": kind, "message": error_text(error)}}


def _call(call: ToolCall, arguments: Mapping[str, object]) -> dict[str, object]:
    return {"type": "tool_use", "id": join_call_id(call), "name": call.name, "input": arguments}


def _stop(answer: Answer) -> dict[str, object]:
    return {"stop_reason": STOP_REASONS[answer.finish_reason], "stop_sequence": None}


def _usage(usage: Usage, cost: float | None) -> dict[str, object]:
    """``input_tokens`` is without what was cached, as Anthropic counts."""
    return {
        "input_tokens": usage.input - usage.cache_read - usage.cache_creation,
        "cache_creation_input_tokens": usage.cache_creation,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_creation - usage.cache_creation_1h,
            "ephemeral_1h_input_tokens": usage.cache_creation_1h,
        },
        "output_tokens": usage.generated,
        "output_tokens_details": {"thinking_tokens": usage.thinking},
        **({} if cost is None else {"cost": cost}),
    }


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), codec.encode({"type": kind, **fields}))
