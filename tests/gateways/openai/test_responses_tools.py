"""Tools of Responses as Codex sends them: namespaces, custom tools, and hosted ones that are left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.gateways.openai.responses_tools import MAX_NAME, ProgramTool
from agentos.llm.providers.offline_rules import CallTemplate, Rule
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import ToolCall
from tests.gateways.served import MODEL, Served, served
from tests.support.clients import openai, responses
from tests.support.rights import Notebook

# The SDK leaves the generators of a stream that was read to its end to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|httpcore):ResourceWarning")

SCHEMA: Any = {"type": "object", "properties": {"target": {"type": "string"}}}
CLOSE: Any = {"type": "function", "name": "close", "description": "Close it.", "parameters": SCHEMA, "strict": False}
AGENTS: Any = {"type": "namespace", "name": "agents", "description": "Of agents.", "tools": [CLOSE]}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patch files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SEARCH: Any = {"type": "web_search", "external_web_access": False}
HOSTED = ["web_search", "web_search_2025_08_26", "web_search_preview", "file_search", "code_interpreter", "mcp"]


async def answer(here: Served, stream: bool, input: Any, **more: Any) -> tuple[Any, Any]:
    """The response, and its headers."""
    async with here.client() as client:
        asked = {"model": MODEL, "input": input, "include": ["reasoning.encrypted_content"], "store": False, **more}
        if not stream:
            raw = await client.responses.with_raw_response.create(**asked)
            return raw.parse(), raw.headers
        async with client.responses.with_streaming_response.create(**asked, stream=True) as raw:
            events = [json.loads(line[6:]) async for line in raw.iter_lines() if line.startswith("data: ")]
            return responses.Response.construct(**events[-1]["response"]), raw.headers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_call_in_a_namespace(stream: bool) -> None:
    rules = Rule(match="end", tool_calls=[CallTemplate("agents__close", {"target": "a"})]), Rule(match="ed", reply="ok")
    async with served(*rules) as here:
        first, _ = await answer(here, stream, "end it", tools=[AGENTS, {**CLOSE, "name": "other"}])
        [call] = first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "closed"}
        items = [{"role": "user", "content": "end it"}, call.model_dump(), result]
        second, _ = await answer(here, stream, items, tools=[AGENTS])

    assert (call.type, call.name, call.namespace, call.arguments) == (
        "function_call",
        "close",
        "agents",
        '{"target":"a"}',
    )
    assert second.output_text == "ok"
    offered = [(tool.name, tool.description, tool.parameters) for tool in here.asked[0].tools]
    assert offered == [("agents__close", "Of agents.\n\nClose it.", SCHEMA), ("other", "Close it.", SCHEMA)]
    assert here.asked[1].messages[1].calls == [ToolCall(call.call_id, "agents__close", {"target": "a"})]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("written", [{"input": "*** Begin"}, "*** Begin"], ids=["arguments", "text"])
async def test_a_call_of_a_custom_tool(stream: bool, written: Any) -> None:
    rules = Rule(match="patch", tool_calls=[CallTemplate("apply_patch", written)]), Rule(match="done", reply="ok")
    async with served(*rules) as here:
        first, _ = await answer(here, stream, "patch", tools=[PATCH])
        [call] = first.output
        result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
        items = [{"role": "user", "content": "patch"}, call.model_dump(exclude_none=True), result]
        second, _ = await answer(here, stream, items, tools=[PATCH])

    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", "*** Begin")
    assert second.output_text == "ok"
    [tool] = here.asked[0].tools
    assert tool.description == "Patch files.\n\nThe input has to match this lark grammar:\nstart: /.+/"
    assert here.asked[1].messages[1].calls == [ToolCall(call.call_id, "apply_patch", {"input": "*** Begin"})]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", HOSTED)
async def test_a_hosted_tool_is_left_out_and_said(kind: str, stream: bool) -> None:
    notebook = Notebook()
    async with served(Rule(reply="hi"), notebook=notebook) as here:
        said, headers = await answer(here, stream, "hello", tools=[{**SEARCH, "type": kind}, CLOSE])

    assert (said.output_text, headers["x-agentos-left-out"]) == ("hi", kind)
    assert [tool.name for tool in here.asked[0].tools] == ["close"]
    assert f"; left out: {kind}" in str(notebook)


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "web_search"}, {"type": "allowed_tools", "tools": [{"type": "web_search"}]}],
    ids=str,
)
async def test_a_hosted_tool_that_has_to_be_called_is_refused(choice: Any) -> None:
    async with served() as here:
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            await answer(here, False, "hello", tools=[SEARCH], tool_choice=choice)


async def test_without_hosted_tools_nothing_is_said_to_be_left_out() -> None:
    async with served(Rule(reply="hi")) as here:
        _, headers = await answer(here, False, "hello", tools=[CLOSE])

    assert "x-agentos-left-out" not in headers


def test_names_for_the_model_are_short_and_differ() -> None:
    names = {ProgramTool("n" * 60, "s" * length).model_name for length in range(1, 60)}

    assert len(names) == 59
    assert max(map(len, names)) == MAX_NAME


def test_a_text_that_is_no_call_of_a_custom_tool_is_its_input() -> None:
    call = ToolCall("c", "p", {"patch": "x"})

    assert ProgramTool("p", is_custom=True).fields_of(call)["input"] == '{"patch":"x"}'
    assert ProgramTool("p").fields_of(ToolCall("c", "p", Text("{"))) == {"name": "p", "arguments": "{"}
