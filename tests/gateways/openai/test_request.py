"""What OpenAI's requests ask."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.gateways.openai.request import parse_request
from agentos.kernel.wire.request_body import LARGE_TEXT_BYTES
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.support.clients import chat
from tests.support.runs.rows import each_row

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        "strict": True,
    },
}


def body(*messages: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages or [HELLO], **fields}).encode()


def asked(*messages: dict[str, Any], **fields: Any) -> Question:
    return parse_request(body(*messages, **fields), "default").question


def refused(*messages: dict[str, Any], **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        asked(*messages, **fields)
    return error.value


def test_the_least_request() -> None:
    assert asked() == Question(model="m", messages=[Message("user", "hello")])


def test_one_without_a_model_asks_the_default() -> None:
    assert parse_request(b'{"messages": [{"role": "user", "content": "hello"}]}', "default").question.model == "default"


def test_all_that_a_question_has() -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    question = asked(
        temperature=0.5,
        max_completion_tokens=77,
        reasoning_effort="medium",
        tools=[WEATHER],
        stop=["END", "."],
        prompt_cache_key="talk-1",
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
    )

    assert question == Question(
        model="m",
        messages=[Message("user", "hello")],
        temperature=0.5,
        max_tokens=77,
        thinking_level="medium",
        tools=(Tool("weather", Text("of a place"), WEATHER["function"]["parameters"], strict=True),),  # type: ignore[index]
        stop=["END", "."],
        response_schema=schema,
        cache_key="talk-1",
    )


def test_null_is_as_good_as_nothing() -> None:
    names = (
        "top_p",
        "logit_bias",
        "logprobs",
        "temperature",
        "max_tokens",
        "stop",
        "tools",
        "tool_choice",
        "response_format",
        "reasoning_effort",
        "n",
    )
    assert asked(**dict.fromkeys([*names, "stream", "stream_options", "functions"])) == asked()


def test_unknown_fields_are_let_pass() -> None:
    assert asked({**HELLO, "name": "Bob", "mood": 5}, top_k=3, min_p=0.1, user="u", metadata={"a": "b"}) == asked()


def test_a_stream_and_its_usage() -> None:
    assert not parse_request(body(), "").stream
    assert parse_request(body(stream=True), "").stream
    assert not parse_request(body(stream=True, stream_options={"include_usage": False}), "").include_usage
    assert parse_request(body(stream=True, stream_options={"include_usage": True}), "").include_usage


def test_what_the_system_and_its_developer_say_is_the_questions_own() -> None:
    question = asked(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        HELLO,
        {"role": "developer", "content": "Now in French."},
    )

    assert question.system == "Be brief.\n\nBe kind."
    assert question.messages == [Message("user", "hello"), Message("system", "Now in French.")]


def test_where_only_the_system_speaks_that_is_what_is_asked() -> None:
    question = asked({"role": "system", "content": "Write a poem."})

    assert (question.system, question.messages) == (None, [Message("user", "Write a poem.")])


def test_an_image_comes_as_its_bytes() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    parts = [{"type": "text", "text": "what is "}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]

    question = asked({"role": "user", "content": [*parts, {"type": "text", "text": "this?"}]})

    assert question.messages == [Message("user", "what is this?", [Image(PNG, "image/png")])]


@each_row(
    "url",
    [
        "https://example.com/cat.png",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "data:image/png,plain",
        "data:image/png;base64,not base64!",
        "data:text/html;base64,aGVsbG8=",
        "data:image/png;base64,",
        "data:",
    ],
)
def test_any_other_image_is_refused_and_never_fetched(url: str) -> None:
    error = refused({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})

    assert error.details["param"] == "messages[0].content[0].image_url.url"


def test_of_a_remote_image_it_says_what_to_send_instead() -> None:
    error = refused({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]})

    assert "expected data:image/png;base64, with the image after it, got 'https://a/b.png'" in str(error)


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists)), st.text(min_size=1))
def test_a_call_survives_the_way_there_and_back(arguments: dict[str, Any], signature: str) -> None:
    from agentos.gateways.openai.response import Shape
    from agentos.llm.providers.provider import Answer

    call = ToolCall("call_1", "weather", arguments, signature)
    whole = Shape("id", 0).whole(Answer("", Usage(), "tool_calls", "m", [call]))
    message = chat.ChatCompletionMessage.model_validate(json.loads(whole)["choices"][0]["message"])

    question = asked(HELLO, message.model_dump(), {"role": "tool", "tool_call_id": "call_1", "content": "rain"})

    assert question.messages[1:] == [
        Message("assistant", "", calls=[call]),
        Message("tool", "rain", answers="call_1"),
    ]


@pytest.mark.parametrize(("choice", "expected"), [(None, "auto"), ("auto", "auto"), ("none", "none")])
def test_tools_may_be_called_or_not(choice: str | None, expected: str) -> None:
    assert asked(tools=[WEATHER], tool_choice=choice).tool_choice == expected


def test_one_of_the_tools_has_to_be_called() -> None:
    assert asked(tools=[WEATHER], tool_choice="required").tool_choice == "required"


def test_a_certain_tool_has_to_be_called() -> None:
    other = {"type": "function", "function": {"name": "time"}}
    question = asked(tools=[other, WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}})

    assert (question.tool_choice, [tool.name for tool in question.tools]) == ("required", ["weather"])


@each_row("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
def test_the_effort_is_the_one_that_was_asked(effort: str) -> None:
    assert asked(reasoning_effort=effort).thinking_level == effort


def test_json_of_any_kind_is_an_object() -> None:
    assert asked(response_format={"type": "json_object"}).response_schema == {"type": "object"}
    assert asked(response_format={"type": "text"}).response_schema is None


def test_the_newer_bound_counts() -> None:
    assert asked(max_tokens=5).max_tokens == 5
    assert asked(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_one_stop_word() -> None:
    assert asked(stop="END").stop == ["END"]


@each_row(
    ("field", "value"),
    [
        ("model", 5),
        ("messages", "hello"),
        ("messages", []),
        ("messages", None),
        ("temperature", "hot"),
        ("temperature", 2.1),
        ("temperature", -1),
        ("temperature", True),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_completion_tokens", 1 << 40),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", []),
        ("n", 2),
        ("n", "1"),
        ("n", True),
        ("n", 1.0),
        ("modalities", True),
        ("modalities", 5),
        ("modalities", {"audio": 1}),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", [""]),
        ("stop", list("abcde")),
        ("tools", {}),
        ("tool_choice", "sometimes"),
        ("tool_choice", "required"),
        ("tool_choice", 5),
        ("tool_choice", {"type": "function", "function": {"name": "other"}}),
        ("tool_choice", {"type": "allowed_tools"}),
        ("reasoning_effort", "heroic"),
        ("reasoning_effort", 5),
        ("response_format", "json"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("functions", [{"name": "old"}]),
        ("function_call", "auto"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    error = refused(**{field: value})

    assert error.details["param"] == field
    assert str(error).startswith(f"{field}: ")


@each_row(
    ("message", "place"),
    [
        ("hello", ""),
        ({}, ".role"),
        ({"role": "king", "content": "x"}, ".role"),
        ({"role": "function", "content": "x", "name": "y"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": 5}, ".content"),
        ({"role": "system", "content": None}, ".content"),
        ({"role": "user", "content": ["x"]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, ".content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, ".content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, ".content[0].image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, ".content[0].image_url"),
        ({"role": "system", "content": [{"type": "image_url"}]}, ".content[0].type"),
        ({"role": "tool", "content": "x"}, ".tool_call_id"),
        ({"role": "assistant", "tool_calls": {}}, ".tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, ".tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": "1", "function": {}}]}, ".tool_calls[0].function.name"),
    ],
)
def test_a_wrong_message_is_named(message: Any, place: str) -> None:
    assert refused(message).details["param"] == f"messages[0]{place}"


@each_row("arguments", [5, ["{}"], True])
def test_arguments_are_text(arguments: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "x", "arguments": arguments}}

    error = refused({"role": "assistant", "tool_calls": [call]})

    assert error.details["param"] == "messages[0].tool_calls[0].function.arguments"


@each_row("arguments", ["{", "[]", "5", '{"a": NaN}', "[" * 100, '{"a": "one', "rm -rf"])
def test_arguments_of_past_calls_may_be_any_text(arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "x", "arguments": arguments}}

    messages = asked({"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "?"}).messages

    assert messages[0].calls == [ToolCall("1", "x", Text(arguments))]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"model": "\\ud800"}',
        b'{"messages": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"messages": [' + b"{}," * LARGE_TEXT_BYTES + b"{}]}",
        b'{"stop": [' + b"1," * LARGE_TEXT_BYTES + b"1]}",
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(data, "m")


def test_brackets_in_a_text_are_none() -> None:
    text = '[{,\\"' * LARGE_TEXT_BYTES

    assert asked({"role": "user", "content": text}).messages == [Message("user", text)]


@pytest.mark.parametrize(("tier", "class_"), [("flex", "batch"), ("priority", None), ("auto", None), (None, None)])
def test_a_flexible_service_tier_is_the_class_batch(tier: str | None, class_: str | None) -> None:
    assert parse_request(body(service_tier=tier), "default").class_ == class_
