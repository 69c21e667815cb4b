"""A tool call whose arguments are no JSON object, through the vendors' own clients: passed on, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.llm.providers.offline_rules import CallTemplate, Rule
from agentos_sdk.values import ToolCall
from tests.gateways.served import MODEL, Served, served
from tests.support.clients import anthropic, httpx2
from tests.support.wire import PATIENCE

# The SDK leaves the generators of a stream that was read to its end to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|anthropic|httpcore):ResourceWarning"),
    pytest.mark.parametrize("wrong", ['{"place": "Bern', "[1]", "place = Bern"]),
    pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"]),
]

SCHEMA: Any = {"type": "object", "properties": {"place": {"type": "string"}}}
REPAIRED = Rule(match="no JSON", reply="again")


def rules(wrong: str) -> tuple[Rule, ...]:
    return Rule(match="weather", tool_calls=[CallTemplate("weather", wrong)]), REPAIRED


def past_calls(here: Served) -> list[ToolCall]:
    return [call for message in here.asked[-1].messages for call in message.calls]


async def test_by_chat_completions(wrong: str, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    said: list[Any] = [{"role": "user", "content": "weather?"}]
    async with served(*rules(wrong)) as here, here.client() as client:
        call: Any
        answer: Any
        if stream:
            pieces = await client.chat.completions.create(model=MODEL, messages=said, tools=tools, stream=True)
            async with pieces:
                [call] = [each async for piece in pieces for each in piece.choices[0].delta.tool_calls or ()]
        else:
            answer = await client.chat.completions.create(model=MODEL, messages=said, tools=tools)
            [call] = answer.choices[0].message.tool_calls
        back = {"id": call.id, "type": "function", "function": call.function.model_dump()}
        said += [{"role": "assistant", "tool_calls": [back]}]
        said += [{"role": "tool", "tool_call_id": call.id, "content": "no JSON"}]
        answer = await client.chat.completions.create(model=MODEL, messages=said, tools=tools)

    assert (call.function.arguments, answer.choices[0].message.content) == (wrong, "again")
    assert [each.arguments for each in past_calls(here)] == [wrong]


async def test_by_responses(wrong: str, stream: bool) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    said: list[Any] = [{"role": "user", "content": "weather?"}]
    async with served(*rules(wrong)) as here, here.client() as client:
        call: Any
        answer: Any
        if stream:
            events = await client.responses.create(model=MODEL, input=said, tools=tools, stream=True)
            async with events:
                [call] = [each.item async for each in events if each.type == "response.output_item.done"]
        else:
            [call] = (await client.responses.create(model=MODEL, input=said, tools=tools)).output
        said += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "no JSON"}]
        answer = await client.responses.create(model=MODEL, input=said, tools=tools)

    assert (call.arguments, answer.output_text) == (wrong, "again")
    assert [each.arguments for each in past_calls(here)] == [wrong]


async def test_by_messages(wrong: str, stream: bool) -> None:
    """Anthropic's input is an object always: its clients stop at anything else in a stream."""
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    said: list[Any] = [{"role": "user", "content": "weather?"}]
    async with (
        served(*rules(wrong)) as here,
        anthropic.AsyncAnthropic(base_url=here.url.removesuffix("/v1"), api_key="any", timeout=PATIENCE) as client,
    ):
        call: Any
        answer: Any
        if stream:
            async with client.messages.stream(model=MODEL, max_tokens=100, messages=said, tools=tools) as events:
                answer = await events.get_final_message()
        else:
            answer = await client.messages.create(model=MODEL, max_tokens=100, messages=said, tools=tools)
        [call] = answer.content
        said += [{"role": "assistant", "content": [call.model_dump()]}]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "no JSON", "is_error": True}
        said += [{"role": "user", "content": [result]}]
        answer = await client.messages.create(model=MODEL, max_tokens=100, messages=said, tools=tools)

    assert (call.input, answer.content[0].text) == ({"INVALID_JSON": wrong}, "again")
    assert [each.arguments for each in past_calls(here)] == [wrong]


async def test_by_contents(wrong: str, stream: bool) -> None:
    """Gemini's arguments are an object as well."""
    declared: Any = {"name": "weather", "parametersJsonSchema": SCHEMA}
    said: list[Any] = [{"role": "user", "parts": [{"text": "weather?"}]}]
    more: Any = {"tools": [{"functionDeclarations": [declared]}]}
    async with served(*rules(wrong)) as here, httpx2.AsyncClient(base_url=here.url, timeout=PATIENCE) as client:

        async def ask(method: str) -> list[Any]:
            answer = await client.post(f"/models/{MODEL}:{method}", json={"contents": said, **more})
            pieces = answer.json() if method == "streamGenerateContent" else [answer.json()]
            return [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]

        [called] = await ask("streamGenerateContent" if stream else "generateContent")
        result = {"functionResponse": {"name": "weather", "response": {"error": "no JSON"}}}
        said += [{"role": "model", "parts": [called]}, {"role": "user", "parts": [result]}]
        [answer] = await ask("generateContent")

    assert (called["functionCall"]["args"], answer["text"]) == ({"INVALID_JSON": wrong}, "again")
    assert [each.arguments for each in past_calls(here)] == [wrong]
