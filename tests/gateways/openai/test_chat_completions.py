"""OpenAI's own client, as anybody would use it, against the endpoint."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest
import trio

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.table import Table
from agentos.llm.providers.offline_rules import CallTemplate, Rule
from agentos.llm.providers.provider import Image, Message, Question
from agentos.llm.settings import OfflineSettings, Price, Retry
from agentos.services.quotas import Quota
from agentos_sdk.errors import CallError, Internal, PermissionDenied, Unavailable
from tests.gateways.served import MODEL, Served, served
from tests.support.clients import openai
from tests.support.rights import Grants, Notebook

# The SDK's: whoever reads a stream to its end leaves its generators to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|httpcore):ResourceWarning")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def ask(here: Served, text: str = "hello", **more: Any) -> Any:
    async with here.client() as client:
        return await client.chat.completions.create(model=MODEL, messages=user(text), **more)


async def streamed(here: Served, text: str = "hello", **more: Any) -> list[Any]:
    async with here.client() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=user(text), stream=True, **more)
        async with stream:
            return [chunk async for chunk in stream]


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def test_an_answer() -> None:
    async with served(Rule(match="hello", reply="Hello yourself.")) as here:
        said = await ask(here, temperature=0.5, max_tokens=100, stop=["END"], reasoning_effort="low")

    assert said.choices[0].message.content == "Hello yourself."
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens
    (question,) = here.asked
    assert question == Question(
        model=MODEL,
        messages=[Message("user", "hello")],
        temperature=0.5,
        max_tokens=100,
        thinking_level="low",
        stop=["END"],
    )


async def test_a_flexible_request_is_of_the_class_batch() -> None:
    async with served(Rule(match="hello", reply="one two three")) as here:
        await ask(here, service_tier="flex")
        await streamed(here, service_tier="flex")
        await ask(here, service_tier="priority")

    assert here.classes == ["batch", "batch", None]


async def test_a_stream() -> None:
    async with served(Rule(match="hello", reply="one two three")) as here:
        chunks = await streamed(here, stream_options={"include_usage": True})

    assert text_of(chunks) == "one two three"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens > 0


async def test_a_stream_comes_as_it_is_said() -> None:
    slow = OfflineSettings(per_output=2)
    async with served(Rule(match="hello", reply="one two"), offline=slow) as here, here.client() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=user("hello"), stream=True)
        async with stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content == "one ":
                    assert here.ended == []


async def test_tools_are_called_and_answered() -> None:
    rules = (
        Rule(match="in (?P<place>.*)", tool_calls=[CallTemplate("weather", {"place": r"\g<place>"})]),
        Rule(tool="weather", match=".*", reply=r"It says: \g<0>"),
    )
    async with served(*rules) as here, here.client() as client:
        messages = user("weather in Paris")
        create: Any = partial(client.chat.completions.create, model=MODEL, messages=messages, tools=[WEATHER])
        message = (await create()).choices[0].message
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"place": "Paris"})

        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        said = await create()

    assert said.choices[0].message.content == "It says: rain"


async def test_calls_are_streamed_too() -> None:
    async with served(Rule(match="hello", tool_calls=[CallTemplate("weather", {"place": "Rome"})])) as here:
        chunks = await streamed(here, tools=[WEATHER])

    (call,) = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert (call.index, call.function.name, json.loads(call.function.arguments)) == (0, "weather", {"place": "Rome"})
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_an_image() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    content: Any = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
    async with served() as here, here.client() as client:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])

    assert here.asked[0].messages == [Message("user", "what?", [Image(PNG, "image/png")])]


async def test_a_large_request() -> None:
    text = "x" * 900_000
    async with served() as here:
        await ask(here, text)

    assert here.asked[0].messages[0].text == text


async def test_structured_output() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    async with served() as here:
        said = await ask(here, response_format=wanted)

    assert isinstance(json.loads(said.choices[0].message.content)["n"], int)


async def test_models_are_listed_with_the_aliases() -> None:
    async with served(aliases={"fast": ["m-1", MODEL], "gpt-*": [MODEL]}) as here, here.client() as client:
        assert [model.id async for model in client.models.list()] == [MODEL, "fast", "m-1"]
        assert (await client.models.retrieve("fast")).id == "fast"


async def test_an_aliass_answer_costs_what_its_model_does() -> None:
    prices = {MODEL: Price(1.0, 2.0), "m-1": Price(100.0, 100.0)}
    async with served(prices=prices, aliases={"m-1": [MODEL]}) as here, here.client() as client:
        whole: Any = await client.chat.completions.create(model="m-1", messages=user("hello"))

    cost = (whole.usage.prompt_tokens * 1.0 + whole.usage.completion_tokens * 2.0) / 1e6
    assert whole.usage.cost == pytest.approx(cost)


class AllBut(Grants):
    """Denies one model by its name."""

    def decide(self, caller: Caller, right: Right) -> Decision:
        if right.object == MODEL:
            return Decision("deny", "the rule", f"nobody may ask {MODEL}")
        return super().decide(caller, right)


@pytest.mark.parametrize("name", [MODEL, f"models/{MODEL}", f"models/models/{MODEL}"])
async def test_no_spelling_of_a_models_name_escapes_a_rule(name: str) -> None:
    async with served(grants=AllBut()) as here, here.client() as client:
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model=name, messages=user("hello"))
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model=name, input="hello")
        with pytest.raises(openai.PermissionDeniedError):
            await client.embeddings.create(model=name, input="hello")

    assert here.asked == []


async def test_models() -> None:
    async with served() as here, here.client() as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "agentos"
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'"):
            await client.models.retrieve("gpt-9")


async def test_the_blocking_client_in_a_thread() -> None:
    def talk() -> str | None:
        with openai.OpenAI(base_url=here.url, api_key="any") as client:
            said = client.chat.completions.create(model=MODEL, messages=user("hello"))
            return said.choices[0].message.content

    async with served(Rule(match="hello", reply="Hi.")) as here:
        assert await trio.to_thread.run_sync(talk) == "Hi."


async def together(here: Served, count: int, **more: Any) -> None:
    """So many questions of one client's at once."""
    async with here.client(**more) as client, trio.open_nursery() as nursery:
        for number in range(count):
            ask = partial(client.chat.completions.create, model=MODEL, messages=user(str(number)))
            nursery.start_soon(ask)


async def test_many_at_once_more_than_there_may_be_connections() -> None:
    async with served(per_agent=200, offline=OfflineSettings(base=0.05), concurrency=50) as here:
        await together(here, 150)

    assert here.ended == ["answered"] * 150


async def test_a_mistake_is_named() -> None:
    async with served() as here:
        with pytest.raises(openai.BadRequestError) as error:
            await ask(here, n=3)

    assert (error.value.param, error.value.type) == ("n", "invalid_request_error")
    assert here.asked == []


async def test_only_a_client_with_the_key_comes_in() -> None:
    async with served(key="the-key") as here:
        for wrong in ("another-key", "the-ke", "the-key2"):
            async with here.client(api_key=wrong) as client:
                with pytest.raises(openai.AuthenticationError) as error:
                    await client.models.list()
        await ask(here)

    assert error.value.code == "invalid_api_key"
    assert len(here.asked) == 1


async def test_without_a_key_any_will_do() -> None:
    async with served() as here, here.client(api_key="whatever") as client:
        assert await client.models.list()


@pytest.mark.parametrize("url", ["/v1/images", "/v1", "/", "/v1/chat/completions/x"])
async def test_there_is_nothing_else(url: str) -> None:
    async with served() as here, here.client() as client:
        for method in (client.get, client.post):
            with pytest.raises(openai.NotFoundError, match="expected POST /v1/chat/completions"):
                await method(here.url.removesuffix("/v1") + url, cast_to=object)


async def counted(here: Served, expected: type[openai.APIStatusError], **more: Any) -> openai.APIStatusError:
    """The error that a client gets which retries as it is made; the time that it took isn't looked at."""
    async with here.client(max_retries=3) as client:
        with pytest.raises(expected) as error:
            await client.chat.completions.create(model=MODEL, messages=user("hello"), **more)
    return error.value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionDenied("not you"), "PermissionDeniedError"),
        (Unavailable("it is down"), "InternalServerError"),
        (Internal("a bug"), "InternalServerError"),
    ],
)
async def test_what_the_kernel_has_retried_already_isnt_retried(error: CallError, expected: str, stream: bool) -> None:
    def refuse(question: Question) -> None:
        raise error

    async with served(think=refuse) as here:
        told = await counted(here, getattr(openai, expected), stream=stream)

    assert str(error) in str(told)
    assert len(here.asked) == 1


async def test_a_budget_that_is_used_up_says_when_it_renews_and_isnt_asked_again() -> None:
    async with served(budget=[Quota("calls", 1, 86400)]) as here:
        await ask(here)
        error = await counted(here, openai.RateLimitError)

    assert error.code == "insufficient_quota"
    assert 0 < int(error.response.headers["retry-after"]) <= 86400
    assert len(here.asked) == 2


async def test_what_is_left_of_a_budget_and_the_cost_are_in_the_headers_and_the_cost_in_the_usage() -> None:
    async with (
        served(budget=[Quota("calls", 3, 86400)], prices={MODEL: Price(1.0, 2.0)}) as here,
        here.client() as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=user("hello"))
        said = (raw.headers, raw.parse())
        streaming = client.chat.completions.with_streaming_response
        async with streaming.create(model=MODEL, messages=user("hello"), stream=True) as stream:
            assert stream.headers["x-ratelimit-limit-requests"] == "3"

    headers, whole = said[0], cast(Any, said[1])
    assert headers["x-ratelimit-remaining-requests"] == "2"
    cost = (whole.usage.prompt_tokens * 1.0 + whole.usage.completion_tokens * 2.0) / 1e6
    assert float(headers["x-agentos-cost"]) == pytest.approx(cost)
    assert whole.usage.cost == pytest.approx(cost)


async def test_a_full_line_is_asked_again_by_the_client_itself() -> None:
    async with served(per_agent=1, concurrency=1, offline=OfflineSettings(base=0.3)) as here:
        await together(here, 3, max_retries=5)

    assert here.ended.count("answered") == 3
    assert "QueueFull" in here.ended


async def test_the_models_own_mistake() -> None:
    async with served(Rule(match="hello", fail="rejected")) as here:
        assert "rejects this" in str(await counted(here, openai.BadRequestError))


async def test_a_stream_that_fails_before_it_began_has_a_status() -> None:
    async with served(Rule(match="hello", fail="denied")) as here:
        with pytest.raises(openai.InternalServerError):
            await streamed(here)


async def test_a_stream_that_breaks_off_says_so() -> None:
    heard = []
    async with served(Rule(match="hello", reply="one two", fail="failing")) as here, here.client() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=user("hello"), stream=True)
        async with stream:
            with pytest.raises(openai.APIError, match="the model's provider"):
                async for chunk in stream:
                    heard.append(chunk)

    assert text_of(heard) == "one two"


async def test_a_bug_has_a_reference(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(question: Question) -> None:
        raise ZeroDivisionError

    async with served(think=stumble) as here:
        for stream in (False, True):
            error = await counted(here, openai.InternalServerError, stream=stream)
            assert str(error).split("look for ")[1].split(" ")[0] in caplog.text

    assert len(here.asked) == 2


async def test_its_clock_is_ours() -> None:
    async with served(retry=Retry(attempts=1)) as here:
        said = await ask(here)

    assert abs(said.created - time.time()) < 60


@pytest.mark.parametrize("way", [ask, streamed])
async def test_a_question_is_recorded_once_as_a_think_of_its_agent(way: Callable[[Served], Awaitable[Any]]) -> None:
    notebook = Notebook()
    async with served(notebook=notebook) as here:
        await way(here)

    [entry] = notebook.entries
    assert (entry.agent, entry.kind, entry.call) == (1, "agent", "THINK")
    assert entry.about.startswith(f"{MODEL} (in 6, out 10, cost null, question sha256:")
    assert (entry.phase, entry.outcome, entry.decision) == ("outcome", "ok", "allow")
    assert entry.duration is not None


async def test_a_refused_question_is_recorded_once_and_never_reaches_the_line() -> None:
    notebook = Notebook()
    async with served(notebook=notebook, grants=Grants(denied=["think"])) as here:
        with pytest.raises(openai.PermissionDeniedError):
            await ask(here)

    assert here.asked == []
    assert [(entry.call, entry.about, entry.outcome) for entry in notebook.entries] == [
        ("THINK", MODEL, "permission_denied")
    ]


async def test_the_agents_table_decides_what_the_endpoint_does() -> None:
    async with served() as here:
        here.caller.table = Table(())
        with pytest.raises(openai.APIStatusError, match="no call THINK"):
            await ask(here)

    assert here.asked == []
