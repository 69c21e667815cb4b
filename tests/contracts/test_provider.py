"""What every provider of models promises, however it comes by its answers."""

from collections.abc import AsyncIterator

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.answers.sampling import Sampling
from agentos.llm.providers.provider import (
    Delta,
    Denied,
    Failing,
    Image,
    Message,
    Provider,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
)
from agentos_sdk.encoding import codec
from agentos_sdk.values import Tool, ToolCall
from tests.contracts.worlds import WORLDS, World
from tests.llm.vendors.script import Break, Called, Refuses, Says, Silent, Text, Until

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")])
MULTIPLY = Tool("multiply", codec.Text("of two"), {"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.fixture(params=WORLDS, ids=lambda make: make.__name__)
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[World]:
    made: World = await request.param(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


async def test_an_answer_is_heard_in_pieces_and_returned_whole(world: World) -> None:
    provider = await world.meet(Says([Text("It is "), Text("forty-"), Text("two, 数 \\1\u2028\n")]))
    heard: list[Delta] = []

    answer = await provider.answer(QUESTION, heard.append)

    assert answer.text == "It is forty-two, 数 \\1\u2028\n"
    assert "".join(delta.text for delta in heard) == answer.text
    assert sum(bool(delta.text) for delta in heard) > 1
    assert answer.finish_reason == "stop"
    assert not answer.calls
    assert answer.model


async def test_an_answer_says_what_it_used(world: World) -> None:
    provider = await world.meet(Says([Text("It is forty-two")]))

    usage = (await provider.answer(QUESTION, deaf)).usage

    assert usage.input > 0
    assert usage.output > 0
    assert usage.total == usage.input + usage.output + usage.thinking


async def test_tools_are_called_with_arguments_and_ids_of_their_own(world: World) -> None:
    calls = [Called(ToolCall(f"c{number}", "multiply", {"a": number, "b": [1, {"c": "ü"}]})) for number in (6, 7)]
    provider = await world.meet(Says([Text("Let me see."), *calls]))
    heard: list[Delta] = []

    answer = await provider.answer(replace(QUESTION, tools=[MULTIPLY]), heard.append)

    assert [(call.name, call.arguments) for call in answer.calls] == [
        ("multiply", {"a": 6, "b": [1, {"c": "ü"}]}),
        ("multiply", {"a": 7, "b": [1, {"c": "ü"}]}),
    ]
    assert len({call.id for call in answer.calls}) == 2
    assert answer.text == "Let me see."
    assert answer.finish_reason == "tool_calls"
    assert sum(delta.unseen for delta in heard) > 0


async def test_a_question_may_have_everything(world: World) -> None:
    provider = await world.meet(Says([Text("42")]))
    image = Image(b"\x89PNG", "image/png")
    question = Question(
        model="a-model",
        messages=[
            Message("user", "What is this times 7?", images=[image, image]),
            Message("assistant", "", calls=[ToolCall("c1", "multiply", {"a": 6}), ToolCall("c2", "multiply", {})]),
            Message("tool", '{"product": 42}', answers="c1"),
            Message("tool", "a factor is missing", answers="c2", images=[image]),
            Message("assistant", "Hm."),
            Message("user", "", images=[image]),
        ],
        system="Be exact.",
        temperature=0.5,
        max_tokens=100,
        thinking_level="low",
        tools=[MULTIPLY, Tool("now")],
        tool_choice="none",
        stop=["STOP"],
        response_schema={"type": "integer"},
        sampling=Sampling(top_p=0.5, seed=7, presence_penalty=0.5, frequency_penalty=-0.5),
    )

    assert (await provider.answer(question, deaf)).text == "42"


@pytest.mark.parametrize("why", ["length", "content_filter"])
async def test_an_answer_says_why_it_ended(world: World, why: str) -> None:
    provider = await world.meet(Says([Text("It is")], finish=why))

    answer = await provider.answer(QUESTION, deaf)

    assert answer.finish_reason == why
    assert answer.text == "It is"


@pytest.mark.parametrize(
    ("status", "error"), [(400, Rejected), (401, Denied), (429, RateLimited), (503, Failing)], ids=str
)
async def test_an_error_is_named_by_what_can_be_done_about_it(
    world: World, status: int, error: type[ProviderError]
) -> None:
    provider = await world.meet(Refuses(status, "not like this"), Says([Text("but now")]))

    with pytest.raises(error):
        await provider.answer(QUESTION, deaf)

    assert (await provider.answer(QUESTION, deaf)).text == "but now"


async def test_a_provider_that_is_asked_too_much_says_when_to_come_back(world: World) -> None:
    provider = await world.meet(Refuses(429, after=2.5))

    with pytest.raises(RateLimited) as caught:
        await provider.answer(QUESTION, deaf)

    assert caught.value.after == 2.5


async def test_what_was_said_before_it_broke_was_heard(world: World) -> None:
    provider = await world.meet(Says([Text("It is for"), Break("cut")]))
    heard: list[Delta] = []

    with pytest.raises(Failing):
        await provider.answer(QUESTION, heard.append)

    assert "".join(delta.text for delta in heard) == "It is for"


@pytest.mark.parametrize("script", [Silent(), Says([Text("It is"), Until()])], ids=["before", "within"])
async def test_an_answer_that_does_not_come_can_be_cancelled(world: World, script: Silent | Says) -> None:
    provider = await world.meet(script)

    with trio.move_on_after(0.2) as scope:
        await provider.answer(QUESTION, deaf)

    assert scope.cancelled_caught
    await provider.aclose()


async def test_many_questions_may_be_under_way(world: World) -> None:
    provider = await world.meet(*(Says([Text("one"), Text("two")]) for _ in range(20)))
    answers: list[str] = []

    async def ask(provider: Provider) -> None:
        answers.append((await provider.answer(QUESTION, deaf)).text)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask, provider)

    assert answers == ["onetwo"] * 20


async def test_a_provider_closes_more_than_once(world: World) -> None:
    provider = await world.meet(Says([Text("42")]))
    await provider.answer(QUESTION, deaf)

    await provider.aclose()
    await provider.aclose()
