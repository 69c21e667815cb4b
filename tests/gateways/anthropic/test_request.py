"""What is read of a request of Anthropic's Messages protocol, and what is refused by name."""

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.gateways.anthropic.call_ids import join_call_id, split_call_id
from agentos.gateways.anthropic.request import parse_request
from agentos.gateways.request_fields import Asked
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import Tool, ToolCall
from tests.support.runs.rows import each_row

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
OTHER = {"name": "time", "input_schema": {"type": "object"}}
PNG = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"png").decode()},
}


def parse(provider: str = "openai", **fields: Any) -> Asked:
    return parse_request(json.dumps({"max_tokens": 100, "messages": [USER], **fields}).encode(), "m", provider)


def question(**fields: Any) -> Question:
    return parse(**fields).question


def refused(provider: str = "openai", **fields: Any) -> str:
    with pytest.raises(BadRequest) as error:
        parse(provider, **fields)
    return str(error.value)


def test_the_model_is_the_kernels_if_none_is_named() -> None:
    assert question() == Question("m", [Message("user", "hello")], max_tokens=100)
    assert question(model="claude-x").model == "claude-x"


def test_system_texts_are_joined_and_a_later_message_keeps_its_place() -> None:
    blocks = [
        {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Two."},
    ]
    later = {"role": "system", "content": "Three."}

    assert question(system="One.").system == "One."
    assert question(system=blocks, messages=[later, USER]).system == "One.\n\nTwo.\n\nThree."
    asked = question(system=blocks, messages=[USER, later])
    assert (asked.system, asked.messages[1:]) == ("One.\n\nTwo.", [Message("system", "Three.")])


def test_a_conversation_with_tools() -> None:
    asks = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"place": "Rome"}}
    thinks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    says = {"type": "text", "text": "Let me look."}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}, PNG]}
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "no such place", "is_error": True}
    silent = {"type": "tool_result", "tool_use_id": "t3"}
    conversation = [
        USER,
        {"role": "assistant", "content": [*thinks, says, asks]},
        {"role": "user", "content": [result, failed, silent, {"type": "text", "text": "And?"}]},
    ]

    assert list(question(messages=conversation).messages) == [
        Message("user", "hello"),
        Message("assistant", "Let me look.", calls=(ToolCall("t1", "weather", {"place": "Rome"}),)),
        Message("tool", "rain", (Image(b"png", "image/png"),), answers="t1"),
        Message("tool", "Error: no such place", answers="t2"),
        Message("tool", "", answers="t3"),
        Message("user", "And?"),
    ]


def test_a_document_of_plain_text_is_read() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Text."}
    document = {"type": "document", "source": source, "title": "Title"}

    assert question(messages=[{"role": "user", "content": [document, PNG]}]).messages == [
        Message("user", "Title\n\nText.", (Image(b"png", "image/png"),))
    ]


@each_row(
    ("choice", "offered", "level"),
    [
        (None, ["weather", "time"], "auto"),
        ({"type": "auto"}, ["weather", "time"], "auto"),
        ({"type": "none"}, ["weather", "time"], "none"),
        ({"type": "any"}, ["weather", "time"], "required"),
        ({"type": "tool", "name": "time"}, ["time"], "required"),
    ],
)
def test_the_choice_of_a_tool(choice: Any, offered: list[str], level: str) -> None:
    asked = question(tools=[{**TOOL, "type": "custom"}, OTHER], tool_choice=choice)

    assert asked.tools == tuple(Tool(name, Text(""), {"type": "object"}) for name in offered)
    assert asked.tool_choice == level
    assert asked.sampling.parallel_tool_calls is None


def test_one_call_at_a_time_is_for_providers_that_can() -> None:
    fields = {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}

    assert question(**fields).sampling.parallel_tool_calls is False
    assert refused("gemini", **fields).startswith("tool_choice.disable_parallel_tool_use: ")


@each_row(
    ("fields", "level"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "between_tools"}}, None),
        ({"thinking": {"type": "enabled"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4095}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 16383}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 16384}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, None),
        ({"output_config": {"effort": "medium"}}, "medium"),
    ],
)
def test_how_much_is_thought(fields: dict[str, Any], level: str | None) -> None:
    assert question(**fields).thinking_level == level


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_schema_for_the_answer(name: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}

    asked = question(**{name: {"format": wanted} if name == "output_config" else wanted})

    assert asked.response_schema == {"type": "object"}


def test_what_saves_tokens_or_names_an_account_is_let_pass() -> None:
    assert question(
        top_k=5,
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": []},
        mcp_servers=[],
        container=None,
        unheard_of=1,
    ) == Question("m", [Message("user", "hello")], max_tokens=100)


@each_row(
    ("fields", "beginning"),
    [
        ({"messages": []}, "messages: expected at least one message"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role: expected user, assistant or system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: expected a string or an array of blocks"),
        ({"messages": [USER, {"role": "assistant", "content": "It is"}]}, "messages: expected the user's message last"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "messages[0].content[0].type: "),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id: ",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type: ",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source: required"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}
                ]
            },
            "messages[0].content[0].source.type: expected base64",
        ),
        (
            {"messages": [{"role": "user", "content": [{**PNG, "source": {**PNG["source"], "data": "!"}}]}]},  # type: ignore[dict-item]
            "messages[0].content[0].source.data: expected base64",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages[0].content[0].source.type: expected text",
        ),
        ({"system": [PNG]}, "system[0].type: expected text"),
        ({"system": 1}, "system: expected a string or an array of blocks"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: expected custom"),
        ({"tools": [{"name": "weather"}]}, "tools[0].input_schema: required"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: expected a tool that is in tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}},
            "tool_choice: expected a tool that is in tools",
        ),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: expected auto, any, tool or none"),
        ({"thinking": {"type": "loud"}}, "thinking.type: expected enabled, adaptive or disabled"),
        ({"output_config": {"effort": "some"}}, "output_config.effort: expected low"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type: expected json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: required"),
        ({"stop_sequences": ["a", "b", "c", "d", "e"]}, "stop_sequences: expected an array of at most 4 texts"),
        ({"temperature": 1.5}, "temperature: expected a number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number from 1 on"),
        ({"stream": 1}, "stream: expected true or false"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers: not supported"),
        ({"container": "c"}, "container: not supported"),
        ({"inference_geo": "us"}, "inference_geo: not supported"),
        ({"thread": {"type": "create"}}, "thread: not supported"),
        ({"compaction": {}}, "compaction: not supported"),
    ],
)
def test_a_mistake_is_named(fields: dict[str, Any], beginning: str) -> None:
    assert refused(**fields).startswith(beginning)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "source", "name", "role"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "max_tokens")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_whatever_is_sent_is_a_question_or_a_bad_request(fields: dict[str, Any]) -> None:
    try:
        assert parse(**fields)
    except BadRequest as error:
        assert ": " in str(error)


@given(st.text("abc_-", min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
@example("toolu_1", '[{"type": "thinking", "thinking": "Well-known: 1/2 = 0.5_", "signature": "+/="}]')
def test_the_signature_of_a_call_comes_back_in_its_id(own: str, signature: str) -> None:
    call = ToolCall(own, "weather", {}, signature)
    joined = join_call_id(call)

    assert split_call_id(joined) == (call.id, call.signature)
    assert re.fullmatch("[a-zA-Z0-9_-]+", joined)  # what Anthropic accepts


def test_an_id_without_a_signature_is_left_as_it_is() -> None:
    assert join_call_id(ToolCall("toolu_1", "weather", {})) == "toolu_1"
    assert split_call_id("toolu_1") == ("toolu_1", None)
    for broken in ("toolu_1__signed__", "toolu_1__signed__!", "toolu_1__signed__\u2713", "toolu_1__signed___w"):
        assert split_call_id(broken) == (broken, None)
