"""OpenAI's own client at ``/v1/responses``, as programs use it."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import pytest
import trio
from msgspec import Raw

from agentos.kernel.call import Call
from agentos.llm.providers.offline_rules import CallTemplate, Rule
from agentos.llm.providers.provider import Image, Message, Question
from agentos.services.quotas import Quota
from agentos_sdk.calls.state import KeyList, Keys, Store
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import Unavailable
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Tool, ToolCall
from tests.gateways.served import MODEL, Served, served
from tests.support.clients import openai, responses
from tests.support.rights import Grants, Notebook

# The SDK's: whoever reads a stream to its end leaves its generators to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|httpcore):ResourceWarning")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}
CALLS_WEATHER = Rule(match="in (?P<place>.*)", tool_calls=[CallTemplate("weather", {"place": r"\g<place>"})])
MESSAGE_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def create(here: Served, input: Any = "hello", **more: Any) -> responses.Response:
    async with here.client() as client:
        response: responses.Response = await client.responses.create(**{"model": MODEL, "input": input, **more})
        return response


async def events(here: Served, input: Any = "hello", **more: Any) -> list[Any]:
    async with here.client() as client:
        stream = await client.responses.create(model=MODEL, input=input, stream=True, **more)
        async with stream:
            return [event async for event in stream]


async def refused(here: Served, input: Any = "hello", **more: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as error:
        await create(here, input, **more)
    return error.value


async def test_a_flexible_request_is_of_the_class_batch() -> None:
    async with served(Rule(match="hello", reply="one two three")) as here:
        await create(here, service_tier="flex")
        await events(here, service_tier="flex")
        await create(here, service_tier="priority")

    assert here.classes == ["batch", "batch", None]


async def test_an_answer() -> None:
    async with served(Rule(match="hello", reply="Hello yourself.")) as here:
        said = await create(
            here,
            instructions="Be brief.",
            temperature=0.5,
            max_output_tokens=100,
            reasoning={"effort": "low"},
            metadata={"run": "7"},
        )

    assert said.output_text == "Hello yourself."
    assert (said.status, said.error, said.incomplete_details) == ("completed", None, None)
    assert (said.instructions, said.metadata, said.max_output_tokens) == ("Be brief.", {"run": "7"}, 100)
    assert said.usage is not None
    assert said.usage.total_tokens == said.usage.input_tokens + said.usage.output_tokens
    assert here.asked == [
        Question(
            model=MODEL,
            messages=[Message("user", "hello")],
            system="Be brief.",
            temperature=0.5,
            max_tokens=100,
            thinking_level="low",
            tools=[],
        )
    ]


async def test_the_events_of_a_text() -> None:
    async with served(Rule(match="hello", reply="one two")) as here:
        told = await events(here)

    assert list(dict.fromkeys(event.type for event in told)) == MESSAGE_EVENTS
    assert [event.sequence_number for event in told] == list(range(len(told)))
    assert "".join(event.delta for event in told if event.type == "response.output_text.delta") == "one two"
    done = told[-1].response
    assert (done.output_text, done.status, done.id) == ("one two", "completed", told[0].response.id)
    assert told[-2].item == done.output[0]


async def test_the_clients_own_state_machine_follows_the_events() -> None:
    rules = (Rule(match="hello", reply="Let me see.", tool_calls=[CallTemplate("weather", {"place": "Rome"})]),)
    async with (
        served(*rules) as here,
        here.client() as client,
        client.responses.stream(model=MODEL, input="hello", tools=[WEATHER]) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()

    assert kinds[-5:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    message, call = cast(Any, final.output)
    assert (final.output_text, call.type, message.type) == ("Let me see.", "function_call", "message")
    assert (call.name, json.loads(call.arguments)) == ("weather", {"place": "Rome"})


async def test_functions_are_called_and_answered() -> None:
    rules = (CALLS_WEATHER, Rule(tool="weather", match=".*", reply=r"It says: \g<0>"))
    async with served(*rules) as here:
        conversation: list[Any] = [{"role": "user", "content": "weather in Paris"}]
        first = await create(here, conversation, tools=[WEATHER])
        [call] = first.output
        assert call.type == "function_call"
        conversation += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        second = await create(here, conversation, tools=[WEATHER])

    assert second.output_text == "It says: rain"
    assert here.asked[0].tools == [Tool("weather", Text("of a place"), WEATHER["parameters"])]
    assert here.asked[1].messages == [
        Message("user", "weather in Paris"),
        Message("assistant", calls=[ToolCall(call.call_id, "weather", {"place": "Paris"})]),
        Message("tool", "rain", answers=call.call_id),
    ]


async def test_an_answer_that_ends_early_is_incomplete() -> None:
    async with served(Rule(match="hello", reply="one two three four five six")) as here:
        said = await create(here, max_output_tokens=2)
        told = await events(here, max_output_tokens=2)

    assert said.incomplete_details is not None
    assert (said.status, said.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert told[-1].type == "response.incomplete"


async def test_an_image_and_parts_of_text() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    content = [
        {"type": "input_text", "text": "what "},
        {"type": "input_text", "text": "is it?"},
        {"type": "input_image", "image_url": url, "detail": "auto"},
    ]
    async with served() as here:
        await create(here, [{"role": "developer", "content": "Look."}, {"role": "user", "content": content}])

    assert here.asked[0].messages == [Message("user", "what is it?", [Image(PNG, "image/png")])]
    assert here.asked[0].system == "Look."


async def test_structured_output_is_parsed_by_the_client() -> None:
    from pydantic import BaseModel

    class Number(BaseModel):
        n: int

    async with served() as here, here.client() as client:
        said = await client.responses.parse(model=MODEL, input="a number", text_format=Number)

    assert isinstance(said.output_parsed, Number)


async def test_a_mistake_is_named() -> None:
    async with served() as here:
        error = await refused(here, tools=[{"type": "computer_use_preview"}])

    assert (error.status_code, error.param, error.type) == (400, "tools[0].type", "invalid_request_error")
    assert here.asked == []


@pytest.mark.parametrize("more", [{}, {"store": None}, {"store": True}], ids=["unsaid", "null", "true"])
async def test_a_response_is_stored_unless_said_otherwise(more: dict[str, Any]) -> None:
    async with served() as here, here.client() as client:
        forgotten = await create(here, store=False)
        kept = await create(here, **more)

        assert (forgotten.to_dict()["store"], kept.to_dict()["store"]) == (False, True)
        assert await client.responses.retrieve(kept.id, stream=False) == kept
        with pytest.raises(openai.BadRequestError, match="stream: a stored response is sent as a whole"):
            await client.responses.retrieve(kept.id, stream=True)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(forgotten.id)
        await client.responses.delete(kept.id)
        for again in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await again(kept.id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"store": True}], ids=["unsaid", "asked"])
async def test_a_conversation_goes_on_from_a_stored_response(stream: bool, more: dict[str, Any]) -> None:
    async with served(Rule(match="name", reply="You are Ada.")) as here:
        first = await create(here, "I am Ada.", instructions="Only for this one.", **more)
        if stream:
            second = (await events(here, "Who?", previous_response_id=first.id, **more))[-1].response
        else:
            second = await create(here, "Who?", previous_response_id=first.id, **more)
        third = await create(here, "My name?", previous_response_id=second.id)

    assert third.previous_response_id == second.id
    assert here.asked[2].system is None
    assert here.asked[2].messages == [
        Message("user", "I am Ada."),
        Message("assistant", first.output_text),
        Message("user", "Who?"),
        Message("assistant", second.output_text),
        Message("user", "My name?"),
    ]


@pytest.mark.parametrize(("text", "items"), [("x" * 1000, 1), ("x", 1500)], ids=["with large items", "with many items"])
async def test_a_response_that_the_agent_has_made_to_follow_itself_is_read_up_to_a_limit(
    text: str, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.gateways.openai.stored_responses.MAX_CONVERSATION", 100_000)
    own = "resp_" + "1" * 32
    loop = {
        "response": {"output": [], "previous_response_id": own},
        "input": [{"role": "user", "content": text}] * items,
    }
    async with served() as here:
        store = Store(key=f"openai/responses/{own}", value=Raw(json.dumps(loop).encode()), scope="session")
        await here.caller.table.perform(Op.STORE, Call(here.caller, False, send_nothing), store)
        error = await refused(here, previous_response_id=own)

    assert (error.status_code, here.asked) == (413, [])
    assert "expected a conversation of at most" in str(error)


async def test_a_conversation_has_as_many_items_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as here, here.client() as client:
        first = await client.responses.create(model=MODEL, input="one")  # and its answer
        for limit in (2, 1):
            monkeypatch.setattr("agentos.gateways.openai.stored_responses.MAX_PARTS", limit)
            if limit == 2:
                await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
            else:
                error = await refused(here, previous_response_id=first.id)

    assert (error.status_code, len(here.asked)) == (413, 2)


async def send_nothing(chunk: bytes) -> None:
    raise AssertionError("no stream")


async def test_a_stored_value_that_is_slow_to_parse_is_refused() -> None:
    own = "resp_" + "1" * 32
    slow = {"response": {"output": [], "previous_response_id": None}, "input": [{}] * 300_000}
    async with served() as here:
        store = Store(key=f"openai/responses/{own}", value=Raw(json.dumps(slow).encode()), scope="session")
        await here.caller.table.perform(Op.STORE, Call(here.caller, False, send_nothing), store)
        error = await refused(here, previous_response_id=own)

    assert (error.status_code, here.asked) == (400, [])


async def test_a_response_of_another_caller_does_not_exist() -> None:
    async with served() as here:
        kept = await create(here, store=True)
        async with here.other_agent() as other:
            with pytest.raises(openai.NotFoundError) as retrieved:
                await other.responses.retrieve(kept.id)
            with pytest.raises(openai.NotFoundError) as continued:
                await other.responses.create(model=MODEL, input="go on", previous_response_id=kept.id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.delete(kept.id)
        async with here.client() as client:
            assert await client.responses.retrieve(kept.id) == kept

    assert (retrieved.value.code, continued.value.param) == ("not_found", "previous_response_id")
    assert len(here.asked) == 1


async def test_what_was_never_an_id_does_not_exist() -> None:
    async with served() as here:
        for wrong in ("resp_1", "../x", "resp_" + "0" * 32, "x" * 5000):
            error = await refused(here, previous_response_id=wrong)
            assert (error.status_code, error.param) == (404, "previous_response_id")


async def test_a_response_that_exceeds_the_agents_quota_of_state_is_refused() -> None:
    async with served(max_keys=1) as here:
        await create(here, store=True)
        error = await refused(here, store=True)

    assert (error.status_code, error.code) == (429, "insufficient_quota")


async def test_stored_responses_have_a_quota_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.gateways.openai.stored_responses.MAX_STORED", 2)
    async with served() as here:
        for _ in range(2):
            await create(here, store=True)
        error = await refused(here, store=True)

    assert (error.status_code, error.code) == (429, "insufficient_quota")
    assert len(here.asked) == 2


async def test_parallel_requests_store_no_more_than_their_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.gateways.openai.stored_responses.MAX_STORED", 3)
    codes = list[int]()

    async def ask() -> None:
        async with here.client(max_retries=0) as client:
            try:
                await client.responses.create(model=MODEL, input="hello", store=True)
                codes.append(200)
            except openai.RateLimitError as error:
                codes.append(error.status_code)

    async with served() as here:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        keys = Keys(prefix="openai/responses/", scope="session")
        found = await here.caller.table.perform(Op.KEYS, Call(here.caller, False, send_nothing), keys)

        assert isinstance(found, KeyList)
        assert found.count <= 3
        assert codes.count(200) == found.count > 0
        assert len(here.asked) == found.count


async def test_too_large_an_input_is_not_stored_and_the_model_not_asked() -> None:
    async with served(max_payload=4 << 20) as here:
        error = await refused(here, "x" * (1 << 20), store=True)

    assert error.status_code == 413
    assert here.asked == []


async def test_responses_that_were_not_asked_to_be_stored_take_no_room_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentos.gateways.openai.stored_responses.MAX_STORED", 1)
    async with served(max_keys=2) as here, here.client() as client:
        unasked = [await create(here) for _ in range(3)]
        asked = await create(here, store=True)
        store = Store(key="own", value=Raw(b"1"), scope="session")
        await here.caller.table.perform(Op.STORE, Call(here.caller, False, send_nothing), store)
        last = await create(here)

        assert [said.to_dict()["store"] for said in (*unasked, asked, last)] == [True] * 4 + [False]
        assert await client.responses.retrieve(asked.id) == asked
        for gone in unasked:
            with pytest.raises(openai.NotFoundError, match="without store: true the latest 256 are kept"):
                await client.responses.retrieve(gone.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(last.id)


@pytest.mark.parametrize("grants", [Grants(denied=["store"]), Grants(asked=["store"])], ids=["denied", "asked"])
async def test_nothing_is_stored_unasked_where_the_agent_may_not_store(grants: Grants) -> None:
    notebook = Notebook()
    async with served(grants=grants, notebook=notebook) as here:
        whole, told = await create(here), await events(here)

    said = [whole, told[0].response, told[-1].response]
    assert [each.to_dict()["store"] for each in said] == [False] * 3
    assert {entry.call for entry in notebook.entries} == {"THINK"}


async def test_too_large_an_input_is_answered_and_not_stored_unless_asked() -> None:
    async with served(Rule(match="x", reply="long"), max_payload=4 << 20) as here:
        said = await create(here, "x" * (1 << 20))

    assert (said.output_text, said.to_dict()["store"]) == ("long", False)


async def test_an_answer_that_cannot_be_stored_unasked_says_so_at_its_end() -> None:
    async with served(max_keys=0) as here:
        told = await events(here)

    assert [event.response.to_dict()["store"] for event in (told[0], told[-1])] == [True, False]


async def test_storing_needs_the_agents_own_rights_and_is_recorded() -> None:
    notebook = Notebook()
    async with served(grants=Grants(denied=["store"]), notebook=notebook) as here:
        error = await refused(here, store=True)

    assert error.status_code == 403
    assert [entry.call for entry in notebook.entries] == ["THINK", "STORE"]


async def test_a_stream_that_breaks_off_ends_with_a_failed_response() -> None:
    async with served(Rule(match="hello", reply="one two", fail="failing")) as here:
        told = await events(here)

    assert [event.type for event in told][-1] == "response.failed"
    failed = told[-1].response
    assert (failed.status, failed.error.code, failed.output_text) == ("failed", "server_error", "one two")
    assert "the model's provider" in failed.error.message


async def test_an_error_before_the_first_event_has_a_status() -> None:
    def refuse(question: Question) -> None:
        raise Unavailable("it is down")

    async with served(think=refuse) as here:
        with pytest.raises(openai.InternalServerError, match="it is down"):
            await events(here)


async def test_what_is_left_of_a_budget_is_in_the_headers() -> None:
    async with served(budget=[Quota("calls", 2, 86400)]) as here, here.client(max_retries=0) as client:
        raw = await client.responses.with_raw_response.create(model=MODEL, input="hello")
        await create(here)
        error = await refused(here)

    assert raw.headers["x-ratelimit-remaining-requests"] == "1"
    assert (error.code, error.response.headers["x-ratelimit-remaining-requests"]) == ("insufficient_quota", "0")
