"""Marks of the prompt cache, from Anthropic's own client through the kernel to a vendor."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentos.gateways.anthropic.request import parse_request
from agentos.llm.providers.provider import Question
from agentos.llm.settings import Price
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import Usage
from tests.gateways.served import Served, behind
from tests.llm.vendors.script import Says, Text
from tests.support.clients import anthropic
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|anthropic|openai|httpcore):ResourceWarning")

MARK: Any = {"cache_control": {"type": "ephemeral"}}
HOUR: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
MINUTES: Any = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
PNG: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"png").decode()},
}
TOOLS: Any = [
    {"name": "look", "description": "Look.", "input_schema": {"type": "object"}},
    {"name": "write", "description": "Write.", "input_schema": {"type": "object"}},
]
CALL: Any = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}}
USED = Usage(100, 7, 0, cache_read=60, cache_creation=30, cache_creation_1h=10)


def text(said: str, **more: Any) -> Any:
    return {"type": "text", "text": said, **more}


def result(content: Any, **more: Any) -> Any:
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **more}


def client_of(here: Served) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=here.url.removesuffix("/v1"), api_key="any", timeout=PATIENCE)


def marks(value: object, place: str = "") -> dict[str, Any]:
    """The marks in a request's body, by their place."""
    found: dict[str, Any] = {}
    if isinstance(value, Mapping):
        found |= {place: value["cache_control"]} if "cache_control" in value else {}
        items: Any = value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key != "cache_control":
            found |= marks(inner, f"{place}.{key}" if place else str(key))
    return found


async def sent(vendor_name: Any = "anthropic", settings: Mapping[str, Any] = {}, **request: Any) -> Mapping[str, Any]:
    """The body that the vendor gets."""
    async with behind(vendor_name, **settings) as (here, vendor), client_of(here) as client:
        vendor.will(Says([Text("yes")]))
        asked: Any = {"model": "a-model", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
        await client.messages.create(**{**asked, **request})
        body: Mapping[str, Any] = vendor.exchanges[0].body
        return body


ROWS: list[Any] = [
    {"system": [text("Be kind.", **HOUR), text("Be brief."), text("Be exact.", **MINUTES)]},
    {"tools": [{**TOOLS[0], **MARK}, TOOLS[1]]},
    {"messages": [{"role": "user", "content": [text("One.", **MARK), PNG, text("Two."), {**PNG, **MARK}]}]},
    {
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [text("Well.", **MARK), {**CALL, **MARK}]},
            {"role": "user", "content": [result([text("a"), {**PNG, **MARK}, text("b")], **HOUR)]},
        ],
    },
    {"tools": TOOLS, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
]


@pytest.mark.parametrize("request_", ROWS, ids=["system", "tools", "blocks", "turns", "whole"])
async def test_marks_and_blocks_reach_anthropic_as_they_were_set(request_: dict[str, Any]) -> None:
    body = await sent(**request_)

    assert {name: body[name] for name in request_} == request_


@pytest.mark.parametrize("vendor", ["openai", "gemini"])
@pytest.mark.parametrize("request_", ROWS, ids=["system", "tools", "blocks", "turns", "whole"])
async def test_other_vendors_get_no_marks(vendor: str, request_: dict[str, Any]) -> None:
    body = json.dumps(await sent(vendor, **request_))

    assert "cache_control" not in body
    assert "ephemeral" not in body


async def test_the_blocks_of_a_message_stay_when_its_mark_moves_on() -> None:
    first = [text("The files."), text("The question.")]
    begun = await sent(messages=[{"role": "user", "content": [first[0], {**first[1], **MARK}]}])
    later = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": [text("And?", **MARK)]}]
    went_on = await sent(messages=[{"role": "user", "content": first}, *later])

    assert went_on["messages"][0] == {"role": "user", "content": first}
    assert marks(begun) == {"messages.0.content.1": {"type": "ephemeral"}}


async def test_marks_of_system_messages_and_of_failed_results_stay_at_their_texts() -> None:
    turns: Any = [
        {"role": "system", "content": [text("Be kind.", **MARK)]},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result([text("one", **MARK), text("two")], is_error=True)]},
        {"role": "system", "content": [text("Be brief."), text("Be exact.", **HOUR)]},
        {"role": "user", "content": "Go on."},
    ]
    body = await sent(system=[text(""), text("Be good.")], tools=TOOLS, messages=turns)

    assert body["system"] == [text("Be good."), text("Be kind.", **MARK)]
    results, later = body["messages"][2]["content"], body["messages"][3]["content"]
    assert results == [result([text("Error: one", **MARK), text("two")])]
    assert later == [text("<system>\nBe brief."), text("Be exact.\n</system>", **HOUR)]


async def test_what_a_question_needs_beside_its_blocks_is_added_to_them() -> None:
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    async with behind("anthropic") as (here, vendor), client_of(here) as client:
        vendor.will(Says([Text('{"a": 1}')]))
        system: Any = [text("Be kind."), text("Be brief.", **MARK)]
        asked: Any = [{"role": "user", "content": "hello"}]
        more = {"output_config": {"format": schema}}
        await client.messages.create(model="a-model", max_tokens=50, messages=asked, system=system, extra_body=more)
        *told, instruction = vendor.exchanges[0].body["system"]

    assert told == system
    assert instruction["text"].startswith("Answer with a JSON object")


async def test_a_question_without_marks_gets_them_at_the_tools_the_instructions_and_the_end() -> None:
    turns: Any = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [text("Well."), CALL]},
        {"role": "user", "content": [result("a picture")]},
    ]
    everything = await sent(tools=TOOLS, system="Be kind.", messages=turns)
    once = await sent(system=[text("Be kind."), text("Be brief.")])
    extracted = await sent(tools=TOOLS, tool_choice={"type": "any"})
    begun = await sent(tools=TOOLS)
    nothing = await sent()
    blank = await sent(tools=TOOLS, messages=[{"role": "user", "content": " "}])

    assert set(marks(everything)) == {"tools.1", "system.0", "messages.0.content.0", "messages.2.content.0"}
    assert set(marks(once)) == {"system.1"}
    assert set(marks(extracted)) == {"tools.1"}
    assert set(marks(begun)) == {"tools.1", "messages.0.content.0"}
    assert marks(nothing) == {}
    assert blank["messages"] == [{"role": "user", "content": " "}]
    assert nothing["messages"] == [{"role": "user", "content": "hello"}]


async def test_the_file_may_say_that_none_are_placed_and_a_programs_own_stay() -> None:
    off = {"prompt_caching": False}

    assert marks(await sent(settings=off, tools=TOOLS, system="Be kind.")) == {}
    assert set(marks(await sent(settings=off, system=[text("Be kind.", **MARK)]))) == {"system.0"}


@each_row(
    ("wrong", "said"),
    [
        ({"cache_control": {"type": "forever"}}, "cache_control.type: expected ephemeral"),
        ({"cache_control": "ephemeral"}, "cache_control: expected an object"),
        ({"system": [text("a", cache_control={"type": "ephemeral", "ttl": "2h"})]}, "system[0].cache_control.ttl: exp"),
        ({"system": [text("", **MARK)]}, "system[0].cache_control: leave it out here"),
        ({"tools": [{**TOOLS[0], "cache_control": {}}]}, "tools[0].cache_control.type: expected some text"),
        (
            {"messages": [{"role": "user", "content": [result([text(" ", **MARK)])]}]},
            "messages[0].content[0].content[0].cache_control: leave it out here",
        ),
        (
            {"system": [text("a", **MARK)] * 4, "cache_control": {"type": "ephemeral"}},
            "cache_control: expected at most 4 in a request, got 5",
        ),
    ],
)
def test_a_mark_that_anthropic_would_refuse_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as error:
        parsed(**wrong)

    assert str(error.value).startswith(said)


def parsed(**fields: Any) -> Question:
    request = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], **fields}
    return parse_request(json.dumps(request).encode(), "m", "anthropic").question


def test_a_mark_of_a_tool_that_is_not_offered_is_left_out() -> None:
    tools = [{**TOOLS[0], **MARK}, {**TOOLS[1], **HOUR}]

    assert parsed(tools=tools).for_hour
    assert parsed(tools=tools, tool_choice={"type": "tool", "name": "look"}).marked_tools == {"look": "default"}


@pytest.mark.parametrize("vendor_name", ["anthropic", "openai", "gemini"])
@pytest.mark.parametrize("streams", [False, True])
async def test_cached_input_is_told_as_anthropic_tells_it(vendor_name: Any, streams: bool) -> None:
    settings: Any = {"prices": {"a-model": Price(10.0, 0.0, 1.0, 20.0, 30.0)}}
    async with behind(vendor_name, **settings) as (here, vendor), client_of(here) as client:
        vendor.will(Says([Text("yes")], usage=USED))
        request: Any = {"model": "a-model", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
        if streams:
            async with client.messages.stream(**request) as stream:
                usage = (await stream.get_final_message()).usage
        else:
            usage = (await client.messages.create(**request)).usage

    written = 0 if vendor_name == "gemini" else 30
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (60, written)
    assert (usage.input_tokens, usage.output_tokens) == (100 - 60 - written, 7)
    hour = 10 if vendor_name == "anthropic" else 0
    if not streams:
        kept = usage.cache_creation
        assert kept is not None
        assert (kept.ephemeral_5m_input_tokens, kept.ephemeral_1h_input_tokens) == (written - hour, hour)
        cost: Any = usage
        expected = (40 - written) * 10 + 60 * 1 + (written - hour) * 20 + hour * 30
        assert cost.cost == pytest.approx(expected / 1e6)


@pytest.mark.parametrize("vendor_name", ["anthropic", "openai", "gemini"])
async def test_cached_input_is_told_as_openai_tells_it(vendor_name: Any) -> None:
    asked: Any = {"model": "a-model", "messages": [{"role": "user", "content": "hello"}]}
    async with behind(vendor_name) as (here, vendor), here.client() as client:
        vendor.will(*[Says([Text("yes")], usage=USED)] * 4)
        whole = (await client.chat.completions.create(**asked)).usage
        stream: Any = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        streamed = [chunk async for chunk in stream][-1].usage
        response = (await client.responses.create(model="a-model", input="hello")).usage
        events: Any = await client.responses.create(model="a-model", input="hello", stream=True)
        ended = [event async for event in events][-1].response.usage

    written = 0 if vendor_name == "gemini" else 30
    for usage in (whole, streamed):
        assert (usage.prompt_tokens, usage.completion_tokens) == (100, 7)
        details = usage.prompt_tokens_details
        assert (details.cached_tokens, details.cache_write_tokens) == (60, written)
    for usage in (response, ended):
        assert usage is not None
        details = usage.input_tokens_details
        assert (usage.input_tokens, details.cached_tokens, details.cache_write_tokens) == (100, 60, written)
