"""Anthropic's own client against the endpoint."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from agentos.llm.answers.prompt_blocks import Block
from agentos.llm.providers.offline_rules import CallTemplate, Rule
from agentos.llm.providers.provider import Image, Message, Question, estimate_input_tokens
from agentos.llm.settings import OfflineSettings
from agentos.services.quotas import Quota
from agentos_sdk.errors import CallError, Internal, PermissionDenied, Unavailable
from tests.gateways.served import MODEL, Served, served
from tests.support.clients import anthropic
from tests.support.rights import Grants, Notebook

# The SDK's: whoever reads a stream to its end leaves its generators to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|anthropic|httpcore):ResourceWarning")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
WEATHER: Any = {
    "name": "weather",
    "description": "The weather at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def client_of(here: Served, **more: Any) -> anthropic.AsyncAnthropic:
    url = here.url.removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=url, **{"api_key": here.key or "any", "timeout": 30, **more})


def user(content: Any) -> Any:
    return [{"role": "user", "content": content}]


async def ask(here: Served, content: Any = "hello", **more: Any) -> Any:
    async with client_of(here) as client:
        return await client.messages.create(**{"model": MODEL, "max_tokens": 500, "messages": user(content), **more})


async def streamed(here: Served, content: Any = "hello", **more: Any) -> tuple[list[str], Any]:
    """The types of the events, and the message that the client makes of them."""
    async with (
        client_of(here) as client,
        client.messages.stream(model=MODEL, max_tokens=500, messages=user(content), **more) as stream,
    ):
        kinds: list[str] = [event.type async for event in stream]
        return kinds, await stream.get_final_message()


async def test_an_answer() -> None:
    async with served(Rule(match="hello", reply="Hello yourself.")) as here:
        said = await ask(here, stop_sequences=["END"], system="Be kind.", extra_body={"temperature": 0.5, "top_p": 0.9})

    [block] = said.content
    assert (said.type, said.role, block.type, block.text) == ("message", "assistant", "text", "Hello yourself.")
    assert (said.stop_reason, said.stop_sequence, said.model) == ("end_turn", None, MODEL)
    assert said.usage.input_tokens > 0
    assert said.usage.output_tokens > 0
    [question] = here.asked
    assert (question.system, question.temperature, question.max_tokens) == ("Be kind.", 0.5, 500)
    assert (question.stop, question.sampling.top_p) == (["END"], 0.9)
    assert question.messages == [Message("user", "hello")]


async def test_a_stream() -> None:
    async with served(Rule(match="hello", reply="one two three")) as here:
        kinds, said = await streamed(here)

    assert [kind for kind in kinds if kind != "text"] == [  # text is the client's own event, of each delta
        "message_start",
        "content_block_start",
        *["content_block_delta"] * kinds.count("content_block_delta"),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert said.content[0].text == "one two three"
    assert said.stop_reason == "end_turn"
    assert said.usage.output_tokens > 0


async def test_a_stream_comes_as_it_is_said() -> None:
    slow = OfflineSettings(per_output=2)
    async with (
        served(Rule(match="hello", reply="one two"), offline=slow) as here,
        client_of(here) as client,
        client.messages.stream(model=MODEL, max_tokens=500, messages=user("hello")) as stream,
    ):
        async for text in stream.text_stream:
            if text == "one ":
                assert here.ended == []

    assert here.ended == ["answered"]


async def test_the_events_are_those_of_the_protocol() -> None:
    async with served(Rule(match="hello", reply="Hi.")) as here, client_of(here) as client:
        create = client.messages.with_streaming_response.create
        async with create(model=MODEL, max_tokens=500, messages=user("hello"), stream=True) as response:
            lines = [line async for line in response.iter_lines()]

    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    [question] = here.asked
    began = json.loads(lines[1].removeprefix("data: "))["message"]["usage"]
    assert (began["input_tokens"], began["output_tokens"]) == (estimate_input_tokens(question), 0)
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert response.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("streams", [False, True])
async def test_tools_are_called_and_answered(streams: bool) -> None:
    rules = (
        Rule(
            match="in (?P<place>.*)",
            reply="Let me look.",
            tool_calls=[CallTemplate("weather", {"place": r"\g<place>"})],
        ),
        Rule(tool="weather", match=".*", reply=r"It says: \g<0>"),
    )
    async with served(*rules) as here:
        asked = user("weather in Paris")
        if streams:
            _, said = await streamed(here, asked[0]["content"], tools=[WEATHER])
        else:
            said = await ask(here, asked[0]["content"], tools=[WEATHER])
        text, call = said.content
        assert (said.stop_reason, text.text) == ("tool_use", "Let me look.")
        assert (call.type, call.name, call.input) == ("tool_use", "weather", {"place": "Paris"})

        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
        conversation = [*asked, {"role": "assistant", "content": said.content}, *user([result])]
        again = await ask(here, messages=conversation, tools=[WEATHER])

    assert again.content[0].text == "It says: rain"


async def test_calls_without_a_text() -> None:
    calls = [CallTemplate("weather", {"place": "Rome"}), CallTemplate("weather", {"place": "Oslo"})]
    async with served(Rule(match="hello", tool_calls=calls)) as here:
        whole = await ask(here, tools=[WEATHER])
        _, said = await streamed(here, tools=[WEATHER])

    assert [block.input for block in whole.content] == [{"place": "Rome"}, {"place": "Oslo"}]
    assert [block.input for block in said.content] == [{"place": "Rome"}, {"place": "Oslo"}]


async def test_an_image() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    async with served() as here:
        await ask(here, [{"type": "image", "source": source}, {"type": "text", "text": "what?"}])

    in_order = (Block("image"), Block("text", 0, 5))
    assert here.asked[0].messages == [Message("user", "what?", (Image(PNG, "image/png"),), blocks=in_order)]


async def test_a_large_request() -> None:
    text = "x" * 900_000
    async with served() as here:
        await ask(here, text)

    assert here.asked[0].messages[0].text == text


async def test_structured_output() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with served() as here:
        said = await ask(here, output_config={"format": {"type": "json_schema", "schema": schema}})

    assert here.asked[0].response_schema == schema
    assert said.content[0].text.startswith("{")


async def test_tokens_are_counted_without_a_question() -> None:
    notebook = Notebook()
    async with served(notebook=notebook) as here, client_of(here) as client:
        counted = await client.messages.count_tokens(
            model=MODEL, messages=user("hello"), system="Be kind.", tools=[WEATHER]
        )
        less = await client.messages.count_tokens(model=MODEL, messages=user("hello"))
        assert estimate_input_tokens(Question(MODEL, [Message("user", "hello")])) == less.input_tokens

    assert counted.input_tokens > less.input_tokens
    assert (counted.estimated, here.asked, notebook.entries) == (True, [], [])  # type: ignore[attr-defined]


async def test_models() -> None:
    async with served() as here, client_of(here) as client:
        [found] = [each async for each in client.models.list()]
        assert (found.id, found.type, found.display_name) == (MODEL, "model", MODEL)
        assert await client.models.retrieve(MODEL) == found
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'claude-9'"):
            await client.models.retrieve("claude-9")


async def test_both_vendors_clients_are_served_at_once() -> None:
    async with served() as here, here.client() as openai, client_of(here) as client:
        assert (await openai.models.retrieve(MODEL)).object == "model"
        assert (await client.models.retrieve(MODEL)).type == "model"


async def test_what_programs_send_for_anthropic_alone_is_let_pass() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    async with served() as here, client_of(here) as client:
        create: Any = client.beta.messages.create
        await create(
            model=MODEL,
            max_tokens=500,
            system=[{"type": "text", "text": "Be kind.", **cached}, {"type": "text", "text": "Be brief."}],
            messages=user([{"type": "text", "text": "hello", **cached}]),
            tools=[{**WEATHER, **cached, "eager_input_streaming": True}],
            metadata={"user_id": "user_1"},
            service_tier="auto",
            context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
            betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
            extra_body={"top_k": 5, "something_new": {}},
        )

    assert here.asked[0].system == "Be kind.\n\nBe brief."


async def test_a_mistake_is_named() -> None:
    async with served() as here:
        with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\].type: expected custom") as error:
            await ask(here, tools=[{"type": "web_search_20250305", "name": "web_search"}])

    assert error.value.type == "invalid_request_error"
    assert here.asked == []


@pytest.mark.parametrize("way", ["api_key", "auth_token", "x-api-key"])
async def test_only_a_client_with_the_key_comes_in(way: str) -> None:
    def given(key: str) -> dict[str, Any]:
        if way == "x-api-key":
            return {"api_key": "another", "default_headers": {"x-api-key": key}}
        return {"api_key": None, way: key}

    async with served(key="the-key") as here:
        for wrong in ("another-key", "the-ke", "the-key2"):
            async with client_of(here, **given(wrong)) as client:
                with pytest.raises(anthropic.AuthenticationError) as error:
                    await client.models.list()
        async with client_of(here, **given("the-key")) as client:
            assert await client.models.list()

    assert error.value.type == "authentication_error"


@pytest.mark.parametrize("url", ["/v1/messages/batches", "/v1/messages/x", "/v1/messagesx"])
async def test_there_is_nothing_else(url: str) -> None:
    async with served() as here, client_of(here) as client:
        for method in (client.get, client.post):
            with pytest.raises(anthropic.NotFoundError, match="expected POST /v1/messages"):
                await method(url, cast_to=object)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (PermissionDenied("not you"), "PermissionDeniedError", "permission_error"),
        (Unavailable("it is down"), "InternalServerError", "api_error"),
        (Internal("a bug"), "InternalServerError", "api_error"),
    ],
)
async def test_what_the_kernel_has_retried_already_isnt_retried(
    error: CallError, expected: str, kind: str, streams: bool
) -> None:
    def refuse(question: Question) -> None:
        raise error

    async with served(think=refuse) as here, client_of(here, max_retries=3) as client:
        with pytest.raises(getattr(anthropic, expected), match=str(error)) as told:
            await client.messages.create(model=MODEL, max_tokens=5, messages=user("hello"), stream=streams)

    assert told.value.type == kind
    assert len(here.asked) == 1


async def test_a_budget_that_is_used_up_says_when_it_renews() -> None:
    async with served(budget=[Quota("calls", 1, 86400)]) as here:
        await ask(here)
        with pytest.raises(anthropic.RateLimitError) as error:
            await ask(here)

    assert error.value.type == "rate_limit_error"
    assert 0 < int(error.value.response.headers["retry-after"]) <= 86400


async def test_a_stream_that_breaks_off_says_so() -> None:
    heard = []
    async with (
        served(Rule(match="hello", reply="one two", fail="failing")) as here,
        client_of(here) as client,
        client.messages.stream(model=MODEL, max_tokens=500, messages=user("hello")) as stream,
    ):
        with pytest.raises(anthropic.APIStatusError, match="the model's provider") as error:
            async for text in stream.text_stream:
                heard.append(text)

    assert "".join(heard) == "one two"
    assert error.value.type == "api_error"


async def test_a_question_is_recorded_once_as_a_think_of_its_agent() -> None:
    notebook = Notebook()
    async with served(notebook=notebook) as here:
        await ask(here)
        await streamed(here)

    assert [(entry.call, entry.outcome, entry.decision) for entry in notebook.entries] == [("THINK", "ok", "allow")] * 2


async def test_a_refused_question_never_reaches_the_line() -> None:
    async with served(grants=Grants(denied=["think"])) as here:
        with pytest.raises(anthropic.PermissionDeniedError):
            await ask(here)

    assert here.asked == []
