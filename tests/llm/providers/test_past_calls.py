"""What goes back to a vendor with past tool calls: its thoughts, and names and ids that it takes."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.providers.prompts.past_calls import ID, NAME, accepted_messages, accepted_name, split_system
from agentos.llm.providers.provider import Answer, Delta, Message, Question, Rejected
from agentos_sdk.values import ToolCall
from tests.contracts.worlds import VendorWorld, anthropic, gemini, openai
from tests.llm.vendors.script import Raw, Refuses, Says, Text

ASKED = Message("user", "What time is it?")
QUESTION = Question("a-model", [ASKED])
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
GOOGLE = {"google": {"thought_signature": "c2lnbg=="}}


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made = await openai(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


def stream(*deltas: Mapping[str, Any]) -> Says:
    pieces = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    events = [*pieces, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]
    return Says([Raw(f"data: {json.dumps(event)}\n\n".encode()) for event in events], finish=None)


def follow_up(answer: Answer) -> Question:
    results = [Message("tool", "noon", answers=call.id) for call in answer.calls]
    return replace(QUESTION, messages=[ASKED, Message("assistant", answer.text, calls=answer.calls), *results])


DETAILS = [
    {"type": "reasoning.text", "text": "hm, ", "index": 0, "format": "x", "signature": None},
    {"type": "reasoning.text", "text": "so", "index": 0, "signature": "s1"},
    {"type": "reasoning.encrypted", "data": "abc", "index": 1},
]
THOUGHTS: Mapping[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Any], Mapping[str, Any]]] = {
    "DeepSeek's": (
        [{"reasoning_content": "hm, "}, {"reasoning_content": "so"}, {"tool_calls": [CALL]}],
        {"reasoning_content": "hm, so"},
        {},
    ),
    "none, but said": ([{"reasoning_content": "", "tool_calls": [CALL]}], {"reasoning_content": ""}, {}),
    "with half a character": (
        [{"reasoning_content": "a\ud83d"}, {"reasoning_content": "\ude00", "tool_calls": [CALL]}],
        {"reasoning_content": "a😀"},
        {},
    ),
    "OpenRouter's": (
        [{"reasoning": "hm, ", "reasoning_details": DETAILS[:1]}, {"reasoning": "so", "reasoning_details": DETAILS[1:]},
         {"tool_calls": [CALL]}],
        {
            "reasoning": "hm, so",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "hm, so", "index": 0, "format": "x", "signature": "s1"},
                DETAILS[2],
            ],
        },
        {},
    ),
    "LiteLLM's": (
        [{"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}], "tool_calls": [CALL]}],
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
        {},
    ),
    "Gemini's": ([{"tool_calls": [{**CALL, "extra_content": GOOGLE}]}], {}, {"extra_content": GOOGLE}),
    "Gemini's in a later piece": (
        [{"tool_calls": [CALL]}, {"tool_calls": [{"index": 0, "extra_content": GOOGLE}]}],
        {},
        {"extra_content": GOOGLE},
    ),
    "both": (
        [{"reasoning_content": "hm", "tool_calls": [{**CALL, "extra_content": {"other": {"a": [1]}}}]}],
        {"reasoning_content": "hm"},
        {"extra_content": {"other": {"a": [1]}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", THOUGHTS.values(), ids=THOUGHTS.keys())
async def test_thoughts_go_back_as_they_came(world: VendorWorld, case: tuple[Any, Any, Any]) -> None:
    deltas, of_message, of_call = case
    provider = await world.meet(stream(*deltas))

    await provider.answer(follow_up(await provider.answer(QUESTION, deaf)), deaf)

    message = world.vendor.exchanges[1].body["messages"][1]
    assert {name: message[name] for name in message if name not in ("role", "content", "tool_calls")} == of_message
    [call] = message["tool_calls"]
    assert {name: call[name] for name in call if name not in ("id", "type", "function")} == of_call


async def test_each_call_keeps_what_came_with_it(world: VendorWorld) -> None:
    other = {"google": {"thought_signature": "b3RoZXI="}}
    calls = [{**CALL, "extra_content": GOOGLE}, {**CALL, "index": 1, "id": "c2", "extra_content": other}]
    provider = await world.meet(stream({"tool_calls": calls}))

    answer = await provider.answer(QUESTION, deaf)
    await provider.answer(follow_up(answer), deaf)

    assert [call.signature for call in answer.calls] == ["c2lnbg==", "b3RoZXI="]  # as Gemini's own address has them
    sent = world.vendor.exchanges[1].body["messages"][1]["tool_calls"]
    assert [call["extra_content"] for call in sent] == [GOOGLE, other]


async def test_an_answer_without_calls_has_nothing_to_go_back(world: VendorWorld) -> None:
    provider = await world.meet(stream({"reasoning_content": "hm"}, {"content": "noon"}))

    answer = await provider.answer(QUESTION, deaf)

    assert (answer.text, answer.calls) == ("noon", ())


REFUSALS = [
    "Extra inputs are not permitted: messages[1].reasoning_content",
    "property 'messages.1.reasoning_content' is unsupported",
    "Unrecognized request argument",
]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_that_refuses_thoughts_of_another_is_asked_without(world: VendorWorld, refusal: str) -> None:
    provider = await world.meet(stream({"reasoning_content": "hm", "tool_calls": [CALL]}), Refuses(422, refusal))
    later = follow_up(await provider.answer(QUESTION, deaf))

    for _ in range(2):
        assert (await provider.answer(later, deaf)).finish_reason == "stop"

    sent = [exchange.body["messages"] for exchange in world.vendor.exchanges[1:]]
    assert ["reasoning_content" in messages[1] for messages in sent] == [True, False, False]


async def test_a_refusal_for_another_reason_is_told_and_changes_nothing(world: VendorWorld) -> None:
    refusals = [Refuses(400, "reasoning is too long"), Refuses(400, "still no")]
    provider = await world.meet(
        stream({"reasoning_content": "hm", "tool_calls": [CALL]}), *refusals, Says([Text("12")])
    )
    later = follow_up(await provider.answer(QUESTION, deaf))

    with pytest.raises(Rejected, match="reasoning is too long"):
        await provider.answer(later, deaf)
    await provider.answer(later, deaf)

    assert "reasoning_content" in world.vendor.exchanges[-1].body["messages"][1]


@pytest.mark.parametrize(
    "signature",
    [
        *('{"message": {"role": "system"}}', '{"message": {"reasoning_content": 5}}', '{"call": {"id": "x"}}', "{oops"),
        '{"message": {"extra_content": ' + '{"a": ' * 900 + "1" + "}" * 902,
    ],
)
async def test_a_signature_that_was_changed_is_refused(world: VendorWorld, signature: str) -> None:
    provider = await world.meet()
    message = Message("assistant", calls=[ToolCall("c1", "now", {}, signature)])

    with pytest.raises(Rejected, match="can't be asked this: the signature of a tool call is not the one that came"):
        await provider.answer(replace(QUESTION, messages=[ASKED, message]), deaf)
    assert not world.vendor.exchanges


async def test_thoughts_of_one_vendor_are_left_out_for_another(nursery: trio.Nursery) -> None:
    signature = '{"message": {"reasoning_content": "hm"}}'
    message = Message("assistant", calls=[ToolCall("c1", "now", {}, signature)])
    asked = replace(QUESTION, messages=[ASKED, message, Message("tool", "noon", answers="c1")])
    for make in (anthropic, gemini):
        world = await make(nursery)
        await (await world.meet()).answer(asked, deaf)

        assert "reasoning_content" not in json.dumps(world.vendor.exchanges[0].body)
        await world.aclose()


NAMES = ["exec<|channel|>commentary", "a b", "", "ünï", "x" * 65, "default_api:ls", "<|x|>", "a.b/c"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_tool_can_have_becomes_one(name: str) -> None:
    assert NAME.fullmatch(accepted_name(name))


@pytest.mark.parametrize("name", ["exec", "a_b-c9", "5ls", "x" * 64])
def test_a_name_that_a_tool_can_have_stays(name: str) -> None:
    assert accepted_name(name) == name


@pytest.mark.parametrize("id_", ["x" * 65, "functions.now:0", "", "a b", "ü", "call\n1"])
def test_an_id_that_is_refused_is_replaced_with_that_of_its_result(id_: str) -> None:
    sent = [*accepted_messages([Message("assistant", calls=[ToolCall(id_, "now", {})]), Message("tool", answers=id_)])]

    assert ID.fullmatch(sent[0].calls[0].id)
    assert sent[1].answers == sent[0].calls[0].id


def test_an_id_that_comes_again_in_a_later_turn_is_told_apart() -> None:
    turn = [Message("assistant", calls=[ToolCall("c1", "now", {})]), Message("tool", "noon", answers="c1")]

    sent = [*accepted_messages([*turn, *turn])]

    assert sent[0].calls[0].id == sent[1].answers == "c1"
    assert sent[2].calls[0].id == sent[3].answers != "c1"
    assert [*accepted_messages([*turn, *turn])] == sent


@pytest.mark.parametrize("make", [openai, anthropic, gemini], ids=lambda make: make.__name__)
async def test_every_vendor_gets_names_and_ids_that_it_takes(make: Any, nursery: trio.Nursery) -> None:
    world: VendorWorld = await make(nursery)
    calls = [ToolCall("functions.exec:0", "exec<|channel|>commentary", {})]
    messages = [ASKED, Message("assistant", calls=calls), Message("tool", "no such tool", answers="functions.exec:0")]

    await (await world.meet()).answer(replace(QUESTION, messages=messages), deaf)

    body = json.dumps(world.vendor.exchanges[0].body)
    assert "<|" not in body
    assert "functions.exec" not in body
    assert re.search(r'"exec_channel_commentary"', body)
    await world.aclose()


def test_a_system_message_among_results_comes_behind_them() -> None:
    calls = Message("assistant", calls=[ToolCall("a", "now", {}), ToolCall("b", "now", {})])
    a, b, told = Message("tool", answers="a"), Message("tool", answers="b"), Message("system", "more")

    assert split_system([told, calls, told, a, told, b, told]) == (["more"], [calls, a, b, told, told, told])
    assert split_system([calls, a, told, Message("user", "?")]) == ([], [calls, a, told, Message("user", "?")])
    assert split_system([told, told]) == (["more", "more"], [])
    later = Message("system", "later")
    assert split_system([calls, told, a, b, later])[1] == [calls, a, b, told, later]
    assert split_system([calls, told, a, later])[1] == [calls, a, told, later]


async def test_half_a_character_in_a_signature_goes_back_as_a_replacement(world: VendorWorld) -> None:
    provider = await world.meet()
    call = ToolCall("c1", "now", {}, '{"message": {"reasoning_content": "\\ud83d"}}')

    await provider.answer(replace(QUESTION, messages=[ASKED, Message("assistant", calls=[call])]), deaf)

    assert world.vendor.exchanges[0].body["messages"][1]["reasoning_content"] == "\ufffd"
