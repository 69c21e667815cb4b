"""What is OpenAI's own, and what its imitators do otherwise."""

import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
from attrs import evolve
from msgspec.structs import replace

from agentos.llm.providers.choose import connect
from agentos.llm.providers.provider import (
    Delta,
    Denied,
    Failing,
    Image,
    Message,
    Question,
    RateLimited,
    Rejected,
    Unforeseen,
)
from agentos.llm.settings import LLMSettings
from agentos_sdk.encoding.codec import Text as JsonText
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.contracts.worlds import VendorWorld, openai
from tests.llm.vendors.script import MODEL, Called, Raw, Refuses, Says, Text, Trouble

QUESTION = Question("a-model", (Message("user", "What is 6 times 7?"),))
PNG = Image(b"\x89PNG", "image/png")


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made = await openai(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


def raw(*pieces: Any) -> Says:
    """A stream that begins as always and goes on with these events."""
    return Says([Raw(f"data: {json.dumps(piece)}\n\n".encode()) for piece in pieces], finish=None)


def choice(finish: str | None = None, **delta: Any) -> Mapping[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


class Everywhere(trio.abc.HostnameResolver):
    """Every host is this one."""

    async def getaddrinfo(self, host: Any, port: Any, *args: Any, **more: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", int(port)))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise OSError("nobody asks")


async def test_openai_itself_is_told_another_maximum_than_its_imitators_and_gets_wrong_json_back(
    world: VendorWorld,
) -> None:
    wrong = Message("assistant", calls=[ToolCall("c1", "now", JsonText('{"a": "'))])
    said = {"max_tokens": 100, "cache_key": "talk-1"}
    question = replace(QUESTION, **said, messages=[*QUESTION.messages, wrong, Message("tool", answers="c1")])
    imitator = await world.meet()
    trio.socket.set_custom_hostname_resolver(Everywhere())
    genuine_url = world.vendor.base_url.replace("127.0.0.1", "api.openai.com")
    genuine = await connect(evolve(world.choice, base_url=genuine_url), LLMSettings())

    await imitator.answer(question, deaf)
    await genuine.answer(question, deaf)
    await genuine.aclose()

    bodies = [exchange.body for exchange in world.vendor.exchanges]
    assert [body.get("max_tokens") for body in bodies] == [100, None]
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 100]
    assert [body.get("prompt_cache_key") for body in bodies] == [None, "talk-1"]
    calls = [body["messages"][-2]["tool_calls"][0]["function"]["arguments"] for body in bodies]
    assert calls == [json.dumps({"INVALID_JSON": '{"a": "'}, separators=(",", ":")), '{"a": "']


async def test_a_server_of_ones_own_needs_no_key(world: VendorWorld) -> None:
    world.vendor.key = "none"
    provider = await connect(evolve(world.choice, key=None), LLMSettings())
    world.vendor.will(Says([Text("none of it")]), Refuses(401), Refuses(400, "there is none"))

    assert (await provider.answer(QUESTION, deaf)).text == "none of it"
    with pytest.raises(Denied, match="set OPENAI_API_KEY"):
        await provider.answer(QUESTION, deaf)
    with pytest.raises(Rejected, match="there is none"):
        await provider.answer(QUESTION, deaf)
    await provider.aclose()


WRONG = {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}
OTHER = {"type": "extra_forbidden", "loc": ["body", "n"], "msg": "Extra inputs are not permitted"}


@pytest.mark.parametrize(
    "refuses",
    [
        Refuses(400, "Unknown parameter: stream_options"),
        Refuses(422, body=json.dumps({"detail": [OTHER, WRONG]}).encode()),  # FastAPI
        Refuses(422, body=json.dumps({"object": "error", "message": {"detail": [WRONG]}}).encode()),  # Mistral
    ],
)
async def test_a_server_that_does_not_want_to_count_is_asked_without(world: VendorWorld, refuses: Refuses) -> None:
    provider = await world.meet(refuses, Says([Text("42")], usage=None))

    assert (await provider.answer(QUESTION, deaf)).usage.input > 0
    await provider.answer(QUESTION, deaf)

    assert ["stream_options" in exchange.body for exchange in world.vendor.exchanges] == [True, False, False]


@pytest.mark.parametrize("wrong", [{"required": None}, {"required": [["a"]]}, {"properties": True}, {"required": 5}])
async def test_an_odd_schema_is_for_the_server_to_judge(world: VendorWorld, wrong: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": False, **wrong}
    provider = await world.meet()

    await provider.answer(replace(QUESTION, response_schema=schema), deaf)

    assert world.vendor.exchanges[0].body["response_format"]["json_schema"]["schema"] == schema


async def test_an_answer_that_has_begun_is_not_asked_for_again(world: VendorWorld) -> None:
    broken = Says([Text("4"), Trouble(400, "unknown stream_options")])
    provider = await world.meet(broken, Says([Text("42")]))
    heard: list[str] = []

    with pytest.raises(Rejected, match="unknown stream_options"):
        await provider.answer(QUESTION, lambda delta: heard.append(delta.text))

    assert "".join(heard) == "4"


async def test_an_account_that_is_used_up_is_nothing_to_wait_for(world: VendorWorld) -> None:
    provider = await world.meet(Refuses(429, "You exceeded your current quota", after=1, reason="insufficient_quota"))

    with pytest.raises(Denied, match="used up"):
        await provider.answer(QUESTION, deaf)


async def test_errors_within_a_stream_may_have_names_or_numbers(world: VendorWorld) -> None:
    provider = await world.meet(
        raw({"error": {"message": "slowly", "code": "rate_limit_exceeded"}}),
        raw({"error": {"message": "no", "code": "400"}}),
        raw({"error": "Something happened"}),
        raw({"error": {"message": "Something happened", "code": None}}),
    )

    with pytest.raises(RateLimited, match="slowly"):
        await provider.answer(QUESTION, deaf)
    with pytest.raises(Rejected):
        await provider.answer(QUESTION, deaf)
    for _ in range(2):
        with pytest.raises(Failing, match="Something happened"):
            await provider.answer(QUESTION, deaf)


async def test_a_refusal_is_what_a_filter_stopped(world: VendorWorld) -> None:
    provider = await world.meet(raw(choice(refusal="I can't "), choice(refusal="do that."), choice("stop")))

    answer = await provider.answer(QUESTION, deaf)

    assert (answer.text, answer.finish_reason) == ("I can't do that.", "content_filter")


async def test_reasoning_is_unseen(world: VendorWorld) -> None:
    """By OpenRouter's name; by the other it is part of the contract."""
    provider = await world.meet(raw(choice(reasoning="hm, hm", content=None), choice("stop", content="42")))
    heard: list[Delta] = []

    answer = await provider.answer(QUESTION, heard.append)

    assert answer.text == "42"
    assert sum(delta.unseen for delta in heard) == len("hm, hm")


def called(arguments: str = "{}", **more: Any) -> Mapping[str, Any]:
    name = more.pop("name", "now")
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


CALLS = {
    "without numbers and ids": [choice(tool_calls=[called(), called()])],
    "without numbers": [choice(tool_calls=[called(id="a")]), choice(tool_calls=[called(id="b")])],
    "with the same number": [
        choice(tool_calls=[called(id="a", index=0)]),
        choice(tool_calls=[called(id="b", index=0)]),
    ],
    "in pieces that repeat all": [
        choice(tool_calls=[called("{", id="a", index=0), called("{", id="b", index=1)]),
        choice(tool_calls=[called("}", id="a", index=0), called("}", id="b", index=1)]),
    ],
    "without arguments": [choice(tool_calls=[called("", id="a", index=0), called("", id="b", index=1)])],
}


@pytest.mark.parametrize("pieces", CALLS.values(), ids=CALLS.keys())
async def test_calls_are_told_apart_however_they_are_numbered(
    world: VendorWorld, pieces: list[Mapping[str, Any]]
) -> None:
    provider = await world.meet(raw(*pieces, choice("stop")))

    answer = await provider.answer(replace(QUESTION, tools=(Tool("now"),)), deaf)

    assert [(call.name, call.arguments) for call in answer.calls] == [("now", {})] * 2
    assert len({call.id for call in answer.calls}) == 2
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("arguments", ["{", "[]", "42", "[" * 100_000])
async def test_arguments_that_are_no_object_are_passed_on_as_text(world: VendorWorld, arguments: str) -> None:
    provider = await world.meet(raw(choice("tool_calls", tool_calls=[called(arguments, index=0, id="a")])))

    assert (await provider.answer(QUESTION, deaf)).calls == (ToolCall("a", "now", JsonText(arguments)),)


async def test_a_call_that_the_maximum_cut_off_is_passed_on_as_far_as_it_came(world: VendorWorld) -> None:
    pieces = [called('{"a": 1}', index=0, id="a"), called('{"a": ', index=1, id="b")]
    provider = await world.meet(raw(choice("length", tool_calls=pieces)))

    answer = await provider.answer(QUESTION, deaf)

    assert answer.calls == (ToolCall("a", "now", {"a": 1}), ToolCall("b", "now", JsonText('{"a": ')))
    assert answer.finish_reason == "length"


async def test_a_stream_with_all_that_can_be_missing_is_an_answer(world: VendorWorld) -> None:
    provider = await world.meet(
        Says(
            [
                Raw(b": a comment\r\n\r\n"),
                Raw(b'data:{"choices": [{"delta": {"content"'),
                Raw(b': "4"}}], "usage": null, "model": null}\r\n'),
                Raw(b'\r\nevent: message\ndata: {"choices":\ndata: [{"delta": {"content": "2"}}]}\n\n'),
                Raw(b'data: {"choices": []}\n\ndata: {}\n\n'),
                Raw(b'data: {"choices": [{"delta": null, "finish_reason": "stop"}]}'),  # and no [DONE], nor a line end
            ],
            finish=None,
        )
    )

    answer = await provider.answer(QUESTION, deaf)

    assert (answer.text, answer.finish_reason, answer.model) == ("42", "stop", MODEL)


async def test_there_are_no_more_thoughts_than_were_generated(world: VendorWorld) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 4}}
    provider = await world.meet(raw(choice("stop", content="42"), {"choices": [], "usage": usage}))

    assert (await provider.answer(QUESTION, deaf)).usage == Usage(5, 0, 3)


@pytest.mark.parametrize(
    ("counted", "usage"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2}}, Usage(10, 5, 0, 8, 2)),
        ({"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2}, Usage(10, 5, 0, 8)),
        ({"cached_tokens": 8}, Usage(10, 5, 0, 8)),
        ({"prompt_tokens_details": {"cached_tokens": 11, "cache_write_tokens": 3}}, Usage(10, 5, 0, 10)),
        ({"prompt_tokens_details": {"cached_tokens": "8", "cache_write_tokens": -1}}, Usage(10, 5)),
        ({"prompt_tokens_details": None, "cached_tokens": None}, Usage(10, 5)),
    ],
)
async def test_cached_input_is_counted_by_each_servers_name(
    world: VendorWorld, counted: dict[str, Any], usage: Usage
) -> None:
    counts = {"usage": {"prompt_tokens": 10, "completion_tokens": 5, **counted}}
    provider = await world.meet(raw(choice("stop", content="42"), counts))

    assert (await provider.answer(QUESTION, deaf)).usage == usage


async def test_images_of_tools_follow_as_the_users(world: VendorWorld) -> None:
    calls = (ToolCall("c1", "see", {}), ToolCall("c2", "see", {}))
    provider = await world.meet()
    messages = (
        Message("assistant", "", calls=calls),
        Message("tool", "this", images=(PNG,), answers="c1"),
        Message("tool", "and this", images=(PNG,), answers="c2"),
        Message("assistant", "I see."),
    )

    await provider.answer(replace(QUESTION, messages=messages), deaf)

    assert world.vendor.exchanges[0].question.messages == (
        Message("assistant", "", calls=calls),
        Message("tool", "this", answers="c1"),
        Message("tool", "and this", answers="c2"),
        Message("user", "", images=(PNG, PNG)),
        Message("assistant", "I see."),
    )


CLOSED = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "properties": {"a": {"type": "object"}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": CLOSED}}}, True),
        ({**CLOSED, "properties": {"a": {"anyOf": [CLOSED, {"properties": {}}]}}}, False),
    ],
)
async def test_a_schema_is_asked_for_strictly_where_openai_allows_it(
    world: VendorWorld, schema: Mapping[str, Any], strict: bool
) -> None:
    provider = await world.meet(Says([Text("{}")]))

    await provider.answer(replace(QUESTION, response_schema=schema), deaf)

    assert world.vendor.exchanges[0].body["response_format"]["json_schema"]["strict"] is strict


async def test_an_unknown_end_without_an_answer_is_a_failure_that_says_which(world: VendorWorld) -> None:
    provider = await world.meet(Says(finish="tired"), Says([Trouble(418, "teapot")]))

    with pytest.raises(Unforeseen, match="tired"):
        await provider.answer(QUESTION, deaf)
    with pytest.raises(Rejected, match="teapot"):
        await provider.answer(QUESTION, deaf)


async def test_a_tool_may_be_called_though_the_end_says_stop(world: VendorWorld) -> None:
    provider = await world.meet(Says([Called(ToolCall("c1", "now", {}))], finish="stop"))

    assert (await provider.answer(QUESTION, deaf)).finish_reason == "tool_calls"
