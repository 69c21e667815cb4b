"""What is Gemini's own: turns, signatures, ids, levels of thinking, blocked questions, errors with details."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.answers.called_tools import GENERATED_ID_PREFIX
from agentos.llm.answers.sampling import Effort
from agentos.llm.providers.provider import (
    Delta,
    Denied,
    Failing,
    MalformedCall,
    Message,
    Question,
    RateLimited,
    Rejected,
)
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.contracts.worlds import VendorWorld, gemini
from tests.llm.vendors.script import Called, Refuses, Says, Text, Trouble

QUESTION = Question("gemini-2.0-flash", (Message("user", "What is 6 times 7?"),))


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made = await gemini(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


async def sent(world: VendorWorld, question: Question) -> Mapping[str, Any]:
    await (await world.meet()).answer(question, deaf)
    return world.vendor.exchanges[-1].body


async def test_a_signature_comes_with_a_call_and_goes_back_with_it(world: VendorWorld) -> None:
    call = ToolCall("c1", "now", {}, signature="c2lnbmVk+/8=")
    provider = await world.meet(Says([Called(call), Called(ToolCall("c2", "now", {}))]))

    calls = (await provider.answer(replace(QUESTION, tools=(Tool("now"),)), deaf)).calls
    body = await sent(world, replace(QUESTION, messages=(Message("assistant", calls=calls),)))

    assert calls[0] == call
    assert calls[1].signature is None
    assert [part.get("thoughtSignature", part.get("thought_signature")) for part in body["contents"][0]["parts"]] == [
        "c2lnbmVk-_8=",  # it takes both alphabets
        None,
    ]


async def test_a_signature_that_is_none_is_rejected_before_the_provider_is_asked(world: VendorWorld) -> None:
    question = replace(QUESTION, messages=(Message("assistant", calls=(ToolCall("c1", "now", {}, "!"),)),))

    with pytest.raises(Rejected):
        await (await world.meet()).answer(question, deaf)

    assert not world.vendor.exchanges


async def test_an_id_that_we_made_up_is_not_shown_to_gemini(world: VendorWorld) -> None:
    provider = await world.meet(Says([Called(ToolCall("", "now", {}))]))

    call = (await provider.answer(QUESTION, deaf)).calls[0]
    body = await sent(
        world,
        replace(QUESTION, messages=(Message("assistant", calls=(call,)), Message("tool", "noon", answers=call.id))),
    )

    assert call.id.startswith(GENERATED_ID_PREFIX)
    assert GENERATED_ID_PREFIX not in str(body)
    assert body["contents"][1]["parts"] == [{"functionResponse": {"name": "now", "response": {"output": "noon"}}}]


async def test_what_tools_answered_goes_into_one_turn(world: VendorWorld) -> None:
    calls = (ToolCall("c1", "now", {}), ToolCall("c2", "here", {}))
    answers = (Message("tool", '{"hour": 12}', answers="c1"), Message("tool", "[1, 2]", answers="c2"))
    messages = (Message("assistant", "Well", calls=calls), *answers, Message("user", "And?"), Message("user", "So?"))

    body = await sent(world, replace(QUESTION, messages=messages))

    assert [(turn["role"], len(turn["parts"])) for turn in body["contents"]] == [
        ("model", 3),
        ("user", 2),
        ("user", 1),
        ("user", 1),
    ]
    assert [part["functionResponse"]["response"] for part in body["contents"][1]["parts"]] == [
        {"hour": 12},
        {"output": [1, 2]},
    ]


@pytest.mark.parametrize(
    ("model", "level", "sent_as"),
    [
        ("gemini-2.0-flash", "high", None),
        ("models/gemini-2.0-flash", "high", None),
        ("gemini-1.5-pro", "low", None),
        ("gemini-2.5-flash", "low", {"thinking_budget": 1024}),
        ("gemini-2.5-pro", "high", {"thinking_budget": 24576}),
        ("gemini-3-pro", "medium", {"thinking_level": "MEDIUM"}),
        ("gemini-2.5-flash", "none", {"thinking_budget": 0}),
        ("gemini-2.5-flash", "minimal", {"thinking_budget": 1024}),
        ("gemini-3-flash", "none", {"thinking_level": "MINIMAL"}),
        ("gemini-3-flash", "minimal", {"thinking_level": "MINIMAL"}),
        ("gemini-3-pro", "xhigh", {"thinking_level": "HIGH"}),
        ("gemini-3-pro", None, None),
    ],
)
async def test_thinking_is_asked_for_as_the_model_understands_it(
    world: VendorWorld, model: str, level: Effort | None, sent_as: Mapping[str, Any] | None
) -> None:
    body = await sent(world, replace(QUESTION, model=model, thinking_level=level))

    assert body.get("generationConfig", {}).get("thinkingConfig") == sent_as


async def test_a_question_that_is_blocked_is_an_empty_answer(world: VendorWorld) -> None:
    provider = await world.meet(Says(finish="blocked", usage=Usage(9, 0, 0)))

    answer = await provider.answer(QUESTION, deaf)

    assert (answer.text, answer.finish_reason, answer.usage) == ("", "content_filter", Usage(9, 0, 0))


@pytest.mark.parametrize("reason", ["RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"])
async def test_every_filter_is_a_content_filter(world: VendorWorld, reason: str) -> None:
    provider = await world.meet(Says([Text("It is")], finish=reason))

    assert (await provider.answer(QUESTION, deaf)).finish_reason == "content_filter"


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "OTHER", "SOMETHING_NEW"])
async def test_an_end_without_an_answer_is_a_failure_that_says_which(world: VendorWorld, reason: str) -> None:
    provider = await world.meet(Says(finish=reason))

    with pytest.raises(Failing, match=reason):
        await provider.answer(QUESTION, deaf)


async def test_a_malformed_call_is_told_apart_from_other_failures(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("It is")], finish="MALFORMED_FUNCTION_CALL"))

    with pytest.raises(MalformedCall, match="gemini called a tool with arguments that are no JSON object"):
        await provider.answer(QUESTION, deaf)


async def test_a_key_that_is_none_comes_as_400_and_is_denied(world: VendorWorld) -> None:
    provider = await world.meet(Refuses(400, "API key not valid.", reason="API_KEY_INVALID"))

    with pytest.raises(Denied, match="GEMINI_API_KEY"):
        await provider.answer(QUESTION, deaf)


async def test_retry_info_says_when_to_come_back(world: VendorWorld) -> None:
    provider = await world.meet(Refuses(429, after=34.5), Refuses(429, after=34.5, headers={"retry-after": "1"}))

    for _ in range(2):
        with pytest.raises(RateLimited) as caught:
            await provider.answer(QUESTION, deaf)
        assert caught.value.after == 34.5


async def test_an_error_that_is_no_json_is_told_as_text(world: VendorWorld) -> None:
    provider = await world.meet(Refuses(502, body=b"<html>Bad\n Gateway</html>"), Refuses(503, body=b"[]"))

    with pytest.raises(Failing, match="Bad Gateway"):
        await provider.answer(QUESTION, deaf)
    with pytest.raises(Failing):
        await provider.answer(QUESTION, deaf)


@pytest.mark.parametrize("model", ["", "../../etc/passwd", "a?b=c"])
async def test_a_model_with_an_odd_name_is_rejected(world: VendorWorld, model: str) -> None:
    provider = await world.meet()

    with pytest.raises(Rejected):
        await provider.answer(replace(QUESTION, model=model), deaf)


@pytest.mark.parametrize("part", [slice(0, -4), slice(-12, None), slice(-16, -2)])
async def test_an_error_with_a_piece_of_the_key_in_it_is_not_repeated(world: VendorWorld, part: slice) -> None:
    provider = await world.meet(Says([Trouble(400, f"what sort of a key is {world.vendor.key[part]}***?")]))

    with pytest.raises(Rejected, match=r"gemini: message withheld, it contains the key \(400\)"):
        await provider.answer(QUESTION, deaf)


@pytest.mark.parametrize("signature", ["!!!", "abc", "\u00e9"])
async def test_a_signature_that_was_changed_is_refused(world: VendorWorld, signature: str) -> None:
    provider = await world.meet()
    message = Message("assistant", calls=[ToolCall("c1", "now", {}, signature)])

    with pytest.raises(Rejected, match="can't be asked this: the signature of a tool call is not the one that came"):
        await provider.answer(replace(QUESTION, messages=[*QUESTION.messages, message]), deaf)
