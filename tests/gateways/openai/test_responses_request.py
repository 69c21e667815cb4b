"""What OpenAI's Responses requests ask, and what is refused by name."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.gateways.openai.responses_request import ResponsesRequest, parse_request
from agentos.gateways.request_fields import Fields, read_fields
from agentos.llm.providers.provider import Message
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import ToolCall
from tests.support.runs.rows import each_row

FUNCTIONS: Any = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "leap")]


def asked(input: object = "hello", *, earlier: Any = (), provider: str = "openai", **fields: Any) -> ResponsesRequest:
    return parse_request(read_fields(json.dumps({"input": input, **fields}).encode()), earlier, "default", provider)


def test_the_key_of_the_prompt_cache_is_kept() -> None:
    assert asked(prompt_cache_key="talk-1").question.cache_key == "talk-1"


def test_a_type_of_hosted_tools_counts_once_however_many_there_are() -> None:
    kinds = [f"web_search_{n}" for n in range(16)]

    assert asked(tools=[{"type": kind} for kind in kinds * 3]).left_out == kinds


@each_row(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "web_search_preview"}], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tools": [*FUNCTIONS, {"type": "shell", "name": "x"}]}, "tools[2].type"),
        ({"tools": [{"type": "web_search_\r\nx: y"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search_) forged"}]}, "tools[0].type"),
        ({"tools": [{"type": f"web_search_{n}"} for n in range(17)]}, "tools[16].type"),
        ({"tools": [{"type": "mcp"}, *({"type": f"web_search_{n:030}"} for n in range(20))]}, "tools[16].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "fly"}}, "tool_choice"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "it"}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"text": {"verbosity": "low"}, "provider": "gemini"}, "text.verbosity"),
        ({"reasoning": {"effort": "all"}}, "reasoning.effort"),
        ({"temperature": 3}, "temperature"),
        ({"prompt_cache_key": 3}, "prompt_cache_key"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["hello"]}, "input[0]"),
        ({"input": [{"role": "system", "content": ""}]}, "input"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "critic", "content": "no"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/c.png"}]}
                ]
            },
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "system", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "look", "arguments": ["]"]}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output", "output": "rain"}]}, "input[0].call_id"),
    ],
    ids=str,
)
def test_what_the_kernel_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as error:
        asked(**fields)

    assert error.value.details["param"] == param


def test_what_a_program_may_say_without_effect() -> None:
    said = asked(background=False, include=[], truncation="disabled", user="u", service_tier="auto", max_tool_calls=3)

    assert said.question.messages == [Message("user", "hello")]
    assert (said.question.model, said.stream, said.store) == ("default", False, None)


def test_calls_belong_to_the_assistants_message_before_them() -> None:
    items = [
        {"role": "user", "content": "look, then leap"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "At once."}], "id": "msg_1"},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "leap", "arguments": '{"far": true}'},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a ditch"}]},
        {"type": "function_call_output", "call_id": "2", "output": "done"},
    ]

    assert asked(items).question.messages == [
        Message("user", "look, then leap"),
        Message("assistant", "At once.", calls=[ToolCall("1", "look", {}), ToolCall("2", "leap", {"far": True})]),
        Message("tool", "a ditch", answers="1"),
        Message("tool", "done", answers="2"),
    ]


def test_a_conversation_before_it_comes_first_and_is_not_stored_again() -> None:
    said = asked("and now?", earlier=[{"role": "user", "content": "before"}, {"role": "assistant", "content": "yes"}])

    assert [message.text for message in said.question.messages] == ["before", "yes", "and now?"]
    assert said.input == [{"type": "message", "role": "user", "content": "and now?"}]


def test_instructions_come_before_system_messages_and_a_model_needs_a_user() -> None:
    said = asked([{"role": "system", "content": "two"}, {"role": "user", "content": "hello"}], instructions="one")
    alone = asked([{"role": "developer", "content": "do it"}], instructions="one").question

    assert said.question.system == "one\n\ntwo"
    assert (alone.system, alone.messages) == ("one", [Message("user", "do it")])


@each_row(
    ("choice", "offered", "how"),
    [
        (None, ["look", "leap", "patch"], "auto"),
        ("none", ["look", "leap", "patch"], "none"),
        ("required", ["look", "leap", "patch"], "required"),
        ({"type": "function", "name": "leap"}, ["leap"], "required"),
        ({"type": "custom", "name": "patch"}, ["patch"], "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [FUNCTIONS[0]]}, ["look"], "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": [FUNCTIONS[1]]}, ["leap"], "required"),
    ],
)
def test_the_choice_of_tools(choice: object, offered: list[str], how: str) -> None:
    question = asked(tools=[*FUNCTIONS, {"type": "custom", "name": "patch"}], tool_choice=choice).question

    assert ([tool.name for tool in question.tools], question.tool_choice) == (offered, how)


def test_formats_of_the_text() -> None:
    schema = {"type": "object", "properties": {}}
    named = {"format": {"type": "json_schema", "name": "it", "schema": schema}, "verbosity": "low"}

    assert asked(text=named).question.response_schema == schema
    assert asked(text={"format": {"type": "json_object"}}).question.response_schema == {"type": "object"}
    assert asked(text={"format": {"type": "text"}}).question.response_schema is None
    assert asked(text=named).question.sampling.verbosity == "low"


ANY_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["message", "user", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "output", "name", "tools"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["input", "tools", "tool_choice", "text", "reasoning", "store"]), ANY_JSON))
def test_any_request_is_understood_or_refused(fields: dict[str, Any]) -> None:
    with contextlib.suppress(BadRequest):
        parse_request(Fields(fields), [], "m", "openai")
