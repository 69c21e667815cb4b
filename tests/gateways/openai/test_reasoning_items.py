"""Turns as Codex makes them: nothing is stored, and every item comes back with OpenAI's own fields only."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.gateways.openai.reasoning import BEGIN, read_signatures, reasoning_item
from agentos_sdk.values import ToolCall
from tests.gateways.served import behind
from tests.llm.vendors.script import Called, Says, Text, Thoughts
from tests.support.runs.rows import each_row

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|httpcore):ResourceWarning")

USER: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "wait", "parameters": {}}]}
TURN: Any = {
    "model": "a-model",
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "parallel_tool_calls": True,
    "prompt_cache_key": "a-thread",
    "reasoning": {"summary": "auto"},
    "tools": [{"type": "function", "name": "look", "parameters": {}, "strict": False}, AGENTS, {"type": "web_search"}],
}
KEPT = {  # fields by the type of an item
    "message": ("type", "role", "content", "id"),
    "reasoning": ("type", "id", "summary", "encrypted_content"),
    "function_call": ("type", "id", "call_id", "name", "namespace", "arguments"),
}


@pytest.mark.parametrize("vendor_name", ["gemini", "openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_vendor_wants_back_with_its_calls_travels_in_a_reasoning_item(
    vendor_name: Any, stream: bool
) -> None:
    calls = [ToolCall("c1", "look", {"at": "it"}, "/+8="), ToolCall("c2", "agents__wait", {})]
    async with behind(vendor_name) as (here, vendor), here.client() as client:
        create: Any = client.responses.create
        vendor.will(Says([Thoughts("Hm."), Text("Well."), *map(Called, calls)]), Says([Text("done")]))
        output: list[Any] = []
        if stream:
            async with await create(input=[USER], stream=True, **TURN) as events:
                output = [event.item async for event in events if event.type == "response.output_item.done"]
        else:
            output = list((await create(input=[USER], **TURN)).output)
        items = [item.model_dump(exclude_none=True) for item in output]
        back = [{name: item[name] for name in KEPT[item["type"]] if name in item} for item in items]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
            for item in items
            if item["type"] == "function_call"
        ]
        last = await create(input=[USER, *back, *results], **TURN)

    assert [item["type"] for item in items] == ["message", "reasoning", "function_call", "function_call"]
    assert [(item["name"], item.get("namespace")) for item in items[2:]] == [("look", None), ("wait", "agents")]
    assert not any("extra_content" in item for item in items)
    assert last.output_text == "done"
    _, history, *_ = here.asked[-1].messages
    assert [call.name for call in history.calls] == ["look", "agents__wait"]
    begin = {"gemini": "/+8=", "openai": '{"message":{"reasoning_content":"Hm."', "anthropic": '[{"type":"thinking",'}
    assert str(history.calls[0].signature).startswith(begin[vendor_name])
    assert (history.calls[1].signature, here.asked[-1].cache_key) == (None, "a-thread")


async def test_without_signatures_or_where_they_are_not_included_there_is_no_such_item() -> None:
    signed = Called(ToolCall("c1", "look", {}, "/+8="))
    async with behind("gemini") as (here, vendor), here.client() as client:
        create: Any = client.responses.create
        vendor.will(Says([Called(ToolCall("c1", "look", {}))]), Says([signed]))
        plain = await create(input=[USER], **TURN)
        other = await create(input=[USER], **{**TURN, "include": []})

    assert [item.type for item in (*plain.output, *other.output)] == ["function_call"] * 2
    assert other.output[0].model_extra == {"extra_content": {"google": {"thought_signature": "/+8="}}}


def test_signatures_are_read_as_they_were_given() -> None:
    item = reasoning_item("rs_1", [ToolCall("a", "look", {}, '[{"type": "thinking"}]'), ToolCall("b", "look", {})])

    assert item is not None
    assert read_signatures(item["encrypted_content"]) == {"a": '[{"type": "thinking"}]'}
    assert reasoning_item("rs_1", [ToolCall("b", "look", {})]) is None


@each_row("content", [None, 1, "", "gAAAAABo", BEGIN, BEGIN + "!", BEGIN + "WzFd", BEGIN + "eyJhIjoxfQ=="])
def test_what_another_server_gave_is_passed_over(content: object) -> None:
    assert read_signatures(content) == {}
