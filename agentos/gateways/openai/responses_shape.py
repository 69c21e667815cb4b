"""OpenAI's Response object and the events of its stream, as JSON. No I/O, no clock."""

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from agentos.llm.providers.provider import Answer
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError
from agentos_sdk.values import ToolCall, Usage

from .reasoning import reasoning_item
from .response import refusal, whole_signature_of
from .responses_tools import ProgramTool

ITEM = "response.output_item"
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # reasons, by finish reason


@define(eq=False)
class ResponseShape:
    """All that is sent for one response: ``id`` begins with ``resp_``, ``created`` is seconds since the epoch.

    ``echo`` are the fields of the request that are repeated in the response, ``tools`` its tools by the model's names.
    ``has_reasoning``: the signatures of calls are in an item before them.
    """

    id: str
    created: int
    echo: Mapping[str, Any]
    tools: Mapping[str, ProgramTool] = {}
    has_reasoning: bool = False
    _model: str = ""
    _told: list[str] = field(factory=list)  # the pieces of the text
    _has_message: bool = False  # whether the message item has been added
    _number: int = 0  # of the next event

    def response(self, answer: Answer, cost: float | None) -> dict[str, Any]:
        """The whole response."""
        reason = INCOMPLETE.get(answer.finish_reason)
        status = "incomplete" if reason is not None else "completed"
        output = [self._call_item(index, call) for index, call in enumerate(answer.calls)]
        reasoning = reasoning_item(self.id.replace("resp_", "rs_"), answer.calls) if self.has_reasoning else None
        if reasoning is not None:
            output.insert(0, reasoning)
        if answer.text or not output:
            output.insert(0, self._message(answer.text, status))
        return self._response(
            answer.model,
            status=status,
            incomplete_details={"reason": reason} if reason is not None else None,
            output=output,
            usage=_usage(answer.usage, cost),
        )

    def whole(self, answer: Answer, cost: float | None) -> bytes:
        return codec.encode(self.response(answer, cost))

    def begin(self, model: str) -> bytes:
        self._model = model
        begun = {"response": self._response(model, status="in_progress")}
        return self._event("response.created", **begun) + self._event("response.in_progress", **begun)

    def piece(self, model: str, text: str) -> bytes:
        """The events of a piece of text; before the first one those of the message and its only part."""
        begun = b""
        if not self._has_message:
            self._has_message = True
            item = {**self._message("", "in_progress"), "content": []}
            begun = self._event("response.output_item.added", output_index=0, item=item)
            begun += self._event("response.content_part.added", **self._place(), part=_part(""))
        self._told.append(text)
        return begun + self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def end(self, answer: Answer, cost: float | None) -> bytes:
        response = self.response(answer, cost)
        events = []
        if not answer.text and not answer.calls:
            events.append(self.piece(answer.model, ""))
        for index, item in enumerate(response["output"]):
            match item["type"]:
                case "message":
                    events.append(self._end_message(item))
                case "reasoning":
                    events += [self._event(f"{ITEM}.{end}", output_index=index, item=item) for end in ("added", "done")]
                case _:
                    events.append(self._call_events(index, item))
        events.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(events)

    def broken_off(self, error: CallError) -> bytes:
        told: Any = refusal(error)["error"]
        code = "rate_limit_exceeded" if told["code"] == "rate_limit_exceeded" else "server_error"  # of a closed list
        output = [self._message("".join(self._told), "incomplete")] if self._has_message else []
        failed = self._response(
            self._model, status="failed", output=output, error={"code": code, "message": told["message"]}
        )
        return self._event("response.failed", response=failed)

    def _end_message(self, item: Mapping[str, Any]) -> bytes:
        [part] = item["content"]
        return b"".join(
            [
                self._event("response.output_text.done", **self._place(), text=part["text"], logprobs=[]),
                self._event("response.content_part.done", **self._place(), part=part),
                self._event("response.output_item.done", output_index=0, item=item),
            ]
        )

    def _call_events(self, index: int, item: Mapping[str, Any]) -> bytes:
        place = {"item_id": item["id"], "output_index": index}
        field, kind, more = "arguments", "response.function_call_arguments", {"name": item["name"]}
        if item["type"] == "custom_tool_call":
            field, kind, more = "input", "response.custom_tool_call_input", {}
        empty = {**item, field: "", "status": "in_progress"}
        return b"".join(
            [
                self._event("response.output_item.added", output_index=index, item=empty),
                self._event(f"{kind}.delta", **place, delta=item[field]),
                self._event(f"{kind}.done", **place, **more, **{field: item[field]}),
                self._event("response.output_item.done", output_index=index, item=item),
            ]
        )

    def _response(self, model: str, **fields: object) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": model,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **self.echo,
            **fields,
        }

    @property
    def _message_id(self) -> str:
        return self.id.replace("resp_", "msg_")

    def _message(self, text: str, status: str) -> dict[str, Any]:
        head = {"type": "message", "id": self._message_id, "role": "assistant", "status": status}
        return {**head, "content": [_part(text)]}

    def _call_item(self, index: int, call: ToolCall) -> dict[str, Any]:
        tool = self.tools.get(call.name) or ProgramTool(call.name)
        kind, prefix = ("custom_tool_call", "ctc") if tool.is_custom else ("function_call", "fc")
        own = self.id.replace("resp_", f"{prefix}_{index}_")
        head = {"type": kind, "id": own, "call_id": call.id, "status": "completed"}
        return {**head, **tool.fields_of(call), **({} if self.has_reasoning else whole_signature_of(call))}

    def _place(self) -> dict[str, Any]:
        """Where the text is: in the only part of the first item."""
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _event(self, type: str, **fields: object) -> bytes:
        data = codec.encode({"type": type, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (type.encode(), data)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage, cost: float | None) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_creation},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": usage.thinking},
        "total_tokens": usage.total,
        **({} if cost is None else {"cost": cost}),
    }
