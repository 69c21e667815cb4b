"""What of a request doesn't reach the vendor is named, wherever in the request it is."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentos.gateways.anthropic import request as anthropic_request
from agentos.gateways.gemini import request as gemini_request
from agentos.gateways.left_out import MAX_NAMED, MORE
from agentos.gateways.openai import embeddings, responses_request
from agentos.gateways.openai import request as chat_request
from agentos.gateways.request_fields import read_fields
from agentos_sdk.errors import BadRequest
from tests.gateways.served import served
from tests.support.clients import anthropic
from tests.support.rights import Notebook
from tests.support.runs.rows import each_row

Fields = Mapping[str, Any]

USER = {"role": "user", "content": "hello"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
PNG = "data:image/png;base64,iVBORw0KGgo="


def chat(**fields: Any) -> list[str]:
    return [*chat_request.parse_request(json.dumps({"messages": [USER], **fields}).encode(), "m").left_out]


def responses(**fields: Any) -> list[str]:
    request = read_fields(json.dumps({"input": "hello", **fields}).encode())
    return [*responses_request.parse_request(request, (), "m", "openai").left_out]


def messages(**fields: Any) -> list[str]:
    body = json.dumps({"max_tokens": 9, "messages": [USER], **fields}).encode()
    return [*anthropic_request.parse_request(body, "m", "anthropic").left_out]


def contents(**fields: Any) -> list[str]:
    body = json.dumps({"contents": {"parts": {"text": "hello"}}, **fields}).encode()
    return [*gemini_request.parse_request(body, "m", "gemini").left_out]


def says(*parts: Fields, role: str = "user") -> list[Fields]:
    return [{"role": role, "content": [*parts]}, USER]


@each_row(
    ("fields", "named"),
    [
        ({"top_k": 3, "min_p": 0.5}, ["top_k", "min_p"]),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ["chat_template_kwargs"]),
        ({"enable_thinking": False, "provider": {"order": ["a"]}}, ["enable_thinking", "provider"]),
        ({"prompt_cache_options": {"ttl": "30m"}}, ["prompt_cache_options"]),
        ({"messages": [{**USER, "name": "ada"}]}, ["messages.name"]),
        (
            {"messages": says({"type": "image_url", "image_url": {"url": PNG, "detail": "low"}})},
            ["messages.content.image_url.detail"],
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "description": "short"}}},
            ["response_format.json_schema.description"],
        ),
        ({"tools": [{"type": "function", "function": {**FUNCTION, "returns": {}}}]}, ["tools.function.returns"]),
    ],
)
def test_fields_of_chat_completions(fields: Fields, named: list[str]) -> None:
    assert chat(**fields) == named


@each_row(
    ("fields", "named"),
    [
        ({"stop": ["x"], "seed": 1, "max_tokens": 5}, ["stop", "seed", "max_tokens"]),  # chat completions have these
        ({"image": {"a": 1}}, ["image"]),
        ({"tools": [{"type": "function", **FUNCTION, "defer_loading": True}]}, ["tools.defer_loading"]),
        (
            {"tools": [{"type": "web_search", "filters": {}}, {"type": "function", **FUNCTION, "async": True}]},
            ["web_search", "tools.async"],
        ),
        (
            {"input": says({"type": "input_image", "image_url": PNG, "detail": "high"})},
            ["input.content.detail"],
        ),
        ({"input": [USER, {"role": "assistant", "content": "a", "phase": "commentary"}, USER]}, ["input.phase"]),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "description": "d"}}}, ["text.format.description"]),
    ],
)
def test_fields_of_responses(fields: Fields, named: list[str]) -> None:
    assert responses(**fields) == named


@each_row(
    ("fields", "named"),
    [
        ({"top_k": 5, "speed": "fast"}, ["top_k", "speed"]),
        ({"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]}, ["tools.input_examples"]),
        ({"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, ["tools.defer_loading"]),
        (
            {
                "messages": says(
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "a"},
                        "citations": {"enabled": True},
                    }
                )
            },
            ["messages.content.citations"],
        ),
        ({"output_config": {"effort": "low", "task_budget": {}}}, ["output_config.task_budget"]),
    ],
)
def test_fields_of_messages(fields: Fields, named: list[str]) -> None:
    assert messages(**fields) == named


@each_row(
    ("fields", "named"),
    [
        ({"modelArmorConfig": {"promptTemplateName": "t"}}, ["modelArmorConfig"]),
        ({"safety_settings": [{}], "generation_config": {"top_k": 3}}, ["safetySettings", "generationConfig.topK"]),
        (
            {"tools": {"function_declarations": [{"name": "f", "behavior": "NON_BLOCKING", "response": {}}]}},
            ["tools.functionDeclarations.behavior", "tools.functionDeclarations.response"],
        ),
        (
            {"contents": {"parts": [{"text": "a", "mediaResolution": {"level": "LOW"}}]}},
            ["contents.parts.mediaResolution"],
        ),
        ({"toolConfig": {"includeServerSideToolInvocations": True}}, ["toolConfig.includeServerSideToolInvocations"]),
    ],
)
def test_fields_of_gemini(fields: Fields, named: list[str]) -> None:
    assert contents(**fields) == named


async def test_fields_of_embeddings() -> None:
    notebook = Notebook()
    asked: Any = {"input": "a", "user": "u", "dimensions": 8, "input_type": "query", "truncate": "END"}
    async with served(notebook=notebook) as here, here.client() as client:
        raw = await client.embeddings.with_raw_response.create(
            model="offline-1", input="a", extra_body={"input_type": "query"}
        )

    assert embeddings.parse_request(json.dumps(asked).encode(), "m", "openai").left_out == ["input_type", "truncate"]
    assert raw.headers["x-agentos-left-out"] == "input_type"
    assert "left out: input_type" in repr(notebook.entries)


@each_row(
    ("fields"),
    [
        {"user": "u", "store": True, "metadata": {"a": "b"}, "safety_identifier": "s", "stream_options": {}},
        {"top_k": None, "some": [], "other": "auto"},
        {"messages": [USER, {"role": "assistant", "content": "a", "refusal": None, "annotations": []}, USER]},
        {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}], "parallel_tool_calls": False},
    ],
)
def test_what_says_nothing_and_what_changes_no_answer_is_not_named(fields: Fields) -> None:
    assert chat(**fields) == []


def test_names_are_few_short_and_plain_as_they_go_into_a_header() -> None:
    assert chat(**{"a\r\nx-evil: 1": 1, "é": 2, "x" * 41: 3}) == ["?"]
    many = chat(**{f"field_{number}": 1 for number in range(10 * MAX_NAMED)})
    assert (len(many), many[-1]) == (MAX_NAMED + 1, MORE)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_program_and_the_audit_log_are_told(stream: bool) -> None:
    notebook = Notebook()
    async with served(notebook=notebook) as here:
        client = anthropic.AsyncAnthropic(base_url=here.url.removesuffix("/v1"), api_key="any")
        asked: Any = {"model": "offline-1", "max_tokens": 9, "messages": [USER], "stream": stream}
        async with client, client.messages.with_streaming_response.create(**asked, extra_body={"top_k": 3}) as raw:
            assert raw.headers["x-agentos-left-out"] == "top_k"
            await raw.read()

    assert "left out: top_k" in repr(notebook.entries)


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@each_row(
    ("fields", "told"),
    [
        (
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, USER]},
            "messages[1].function_call: not supported: use tool_calls",
        ),
        ({"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}, USER]}, "messages[1].audio: not supported"),
        ({"moderation": {"model": "m"}}, "moderation: not supported"),
        ({"modalities": ["text", "image"]}, "modalities: expected text"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type: expected function"),
        ({"tools": [{"type": "web_search", "function": FUNCTION}]}, "tools[0].type: expected function"),
    ],
)
def test_what_would_be_another_conversation_is_refused_by_name(fields: Fields, told: str) -> None:
    with pytest.raises(BadRequest) as error:
        chat(**fields)

    assert str(error.value).startswith(told)


def test_an_answer_that_was_a_refusal_stays_in_the_conversation() -> None:
    refusal = {"role": "assistant", "content": None, "refusal": "I won't."}
    asked = chat_request.parse_request(json.dumps({"messages": [USER, refusal, USER]}).encode(), "m").question

    assert [message.text for message in asked.messages] == ["hello", "I won't.", "hello"]


@each_row(
    ("mode", "choice"),
    [("auto", "auto"), ("required", "required")],
)
def test_tools_that_are_allowed_are_the_ones_offered(mode: str, choice: str) -> None:
    tools = [{"type": "function", "function": {**FUNCTION, "name": name}} for name in ("f", "g")]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    fields = {"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    asked = chat_request.parse_request(json.dumps({"messages": [USER], **fields}).encode(), "m").question

    assert ([tool.name for tool in asked.tools], asked.tool_choice) == (["g"], choice)


def test_a_reference_within_googles_schema_leads_to_the_converted_definition() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"a": {"ref": "#/defs/A"}, "b": {"type": "ARRAY", "items": {"$ref": "#/defs/A"}}},
        "defs": {"A": {"anyOf": [{"type": "STRING"}, {"ref": "#/defs/A"}]}},
    }
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    body = json.dumps({"contents": {"parts": {"text": "hello"}}, "generationConfig": config}).encode()

    asked = gemini_request.parse_request(body, "m", "gemini").question.response_schema
    assert json.dumps(asked).count("#/$defs/A") == 3
    assert asked is not None
    assert set(asked) == {"type", "properties", "$defs"}


@each_row(
    ("module", "body"),
    [
        (
            chat_request,
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": ""}}]}, USER]},
        ),
        (
            anthropic_request,
            {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": ""}]}, USER]},
        ),
        (
            gemini_request,
            {
                "contents": [
                    {"parts": {"text": "hello"}},
                    {"role": "model", "parts": {"functionCall": {"name": "", "id": "c"}}},
                    {"parts": {"text": "hello"}},
                ]
            },
        ),
    ],
)
def test_a_call_without_a_name_does_not_end_a_conversation(module: Any, body: Fields) -> None:
    asked = module.parse_request(json.dumps(body).encode(), "m", "openai").question

    assert [call.name for call in asked.messages[1].calls] == [""]
