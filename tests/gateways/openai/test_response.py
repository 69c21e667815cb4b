"""What OpenAI's own types make of our answers."""

from __future__ import annotations

import json

import pytest

from agentos.gateways import error_status
from agentos.gateways.api_key import InvalidKey
from agentos.gateways.openai import response
from agentos.gateways.openai.response import Shape
from agentos.llm.providers.provider import Answer
from agentos_sdk import errors
from agentos_sdk.errors import CallError
from agentos_sdk.values import ToolCall, Usage
from tests.support.clients import chat
from tests.support.runs.rows import each_row

SHAPE = Shape("chatcmpl-1", 1_700_000_000)
USAGE = Usage(input=11, output=5, thinking=7, cache_read=6, cache_creation=3)
CALLS = (ToolCall("call_0", "weather", {"place": "Paris"}, "s1gn"), ToolCall("call_1", "time", {}))


def chunks(data: bytes) -> list[chat.ChatCompletionChunk]:
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [chat.ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: ")) for event in events]


def test_a_text() -> None:
    said = chat.ChatCompletion.model_validate_json(SHAPE.whole(Answer("Hi.", USAGE, "stop", "m-1")))

    assert (said.id, said.created, said.model, said.object) == ("chatcmpl-1", 1_700_000_000, "m-1", "chat.completion")
    (choice,) = said.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hi.", "stop")
    assert choice.message.tool_calls is None


def test_what_was_used_with_thoughts_among_what_was_generated() -> None:
    usage = chat.ChatCompletion.model_validate_json(SHAPE.whole(Answer("Hi.", USAGE, "stop", "m"))).usage

    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 12, 23)
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 7
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens) == (6, 3)


def test_calls_of_tools() -> None:
    said = chat.ChatCompletion.model_validate_json(SHAPE.whole(Answer("", USAGE, "tool_calls", "m", CALLS)))

    message = said.choices[0].message
    assert message.content is None
    first, second = message.tool_calls or []
    assert first.type == "function"
    assert (first.id, first.function.name, json.loads(first.function.arguments)) == (
        "call_0",
        "weather",
        {"place": "Paris"},
    )
    assert first.model_extra == {"extra_content": {"google": {"thought_signature": "s1gn"}}}
    assert second.model_extra == {}


def test_logprobs_stand_in_the_choice_whatever_the_thoughts_have() -> None:
    thoughts = '{"message":{"reasoning_details":[{"logprobs":null}]}}'
    answer = Answer("", USAGE, "tool_calls", "m", [ToolCall("call_0", "time", {}, thoughts)], logprobs=b"[]")

    [choice] = json.loads(SHAPE.whole(answer))["choices"]

    assert choice["logprobs"] == {"content": [], "refusal": None}
    assert choice["message"]["reasoning_details"] == [{"logprobs": None}]


def test_an_empty_answer_is_a_text() -> None:
    said = chat.ChatCompletion.model_validate_json(SHAPE.whole(Answer("", USAGE, "length", "m")))

    assert (said.choices[0].message.content, said.choices[0].finish_reason) == ("", "length")


def test_a_stream() -> None:
    answer = Answer("Hi.", USAGE, "tool_calls", "m", CALLS)
    shape = Shape(SHAPE.id, SHAPE.created, include_usage=True)

    begin, piece, calls, end, usage = chunks(shape.begin("m") + shape.piece("m", "Hi.") + shape.end(answer))

    assert begin.choices[0].delta.role == "assistant"
    assert piece.choices[0].delta.content == "Hi."
    assert [call.index for call in calls.choices[0].delta.tool_calls or []] == [0, 1]
    assert end.choices[0].finish_reason == "tool_calls"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 23


def test_a_stream_tells_its_usage_only_on_request() -> None:
    assert all(chunk.usage is None for chunk in chunks(SHAPE.end(Answer("Hi.", USAGE, "stop", "m"))))


@pytest.mark.parametrize("text", ["a\n\ndata: [DONE]\n\n", "\r\n", "\u2028", "\0"])
def test_no_text_breaks_the_stream(text: str) -> None:
    (piece,) = chunks(SHAPE.piece("m", text) + b"data: [DONE]\n\n")

    assert piece.choices[0].delta.content == text


STATUSES = {
    400: errors.BadRequest("x"),
    401: InvalidKey("x"),
    403: errors.PermissionDenied("x"),
    404: errors.NotFound("x"),
    413: errors.TooLarge("x"),
    429: errors.Busy("x"),
    503: errors.Unavailable("x"),
    504: errors.Timeout("x"),
    500: errors.Internal("x"),
}


@each_row(("status", "error"), STATUSES.items())
def test_errors_have_statuses(status: int, error: CallError) -> None:
    assert error_status.status(error) == status
    told = response.refusal(error)["error"]
    assert isinstance(told, dict)
    assert told.keys() == {"message", "type", "param", "code"}
    assert told["message"] == "x"
    kinds = {429: "rate_limit_exceeded", 500: "server_error", 503: "server_error", 504: "server_error"}
    assert told["type"] == kinds.get(status, "invalid_request_error")


@each_row("cls", errors.BY_CODE.values())
def test_every_error_can_be_told(cls: type[CallError]) -> None:
    error = cls("x")

    assert 400 <= error_status.status(error) < 600
    assert json.loads(json.dumps(response.refusal(error)))
    assert all(value.isascii() for _, value in error_status.advice(error, 0))


def test_only_a_caller_that_found_the_line_full_is_told_to_try_again_soon() -> None:
    assert dict(error_status.advice(errors.Busy("x"), 0)) == {"retry-after": "1"}
    for error in (errors.Unavailable("x"), errors.Timeout("x"), errors.Internal("x")):
        assert dict(error_status.advice(error, 0)) == {"x-should-retry": "false"}


def test_a_quota_says_when_it_renews() -> None:
    error = errors.QuotaExceeded("x", renews_at=1000.5)

    assert dict(error_status.advice(error, 900)) == {"x-should-retry": "false", "retry-after": "101"}
    assert dict(error_status.advice(error, 2000))["retry-after"] == "1"
    assert "retry-after" not in dict(error_status.advice(errors.QuotaExceeded("x", renews_at=None), 900))
    assert response.refusal(error)["error"]["code"] == "insufficient_quota"  # type: ignore[index]
