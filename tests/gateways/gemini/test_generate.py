"""Google's own client against the endpoint, and requests as other clients of Gemini's send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

from agentos.llm.answers.prompt_blocks import Block
from agentos.llm.providers.offline_rules import CallTemplate, Rule
from agentos.llm.providers.provider import Image, Message, Question
from agentos.llm.settings import OfflineSettings, Price
from agentos.services.quotas import Quota
from agentos_sdk.errors import CallError, Internal, PermissionDenied, Unavailable
from agentos_sdk.values import ToolCall, Usage
from tests.gateways.served import MODEL, Served, behind, served
from tests.llm.vendors.script import Called, Refuses, Says, Text, Thoughts
from tests.support.clients import genai, genai_types, httpx2
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

T = TypeVar("T")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
GENERATE, STREAM = f"models/{MODEL}:generateContent", f"models/{MODEL}:streamGenerateContent"
USER: Any = [{"role": "user", "parts": [{"text": "hello"}]}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather at a place.",
    "parameters": {"type": "OBJECT", "properties": {"place": {"type": "STRING"}}},
}
RULES = (
    Rule(match="in (?P<place>.*)", reply="Let me look.", tool_calls=[CallTemplate("weather", {"place": r"\g<place>"})]),
    Rule(tool="weather", match=".*", reply=r"It says: \g<0>"),
)


def client_of(here: Served, **more: Any) -> genai.Client:
    options = {"base_url": here.url.removesuffix("/v1"), "timeout": int(PATIENCE * 1000), **more}
    return genai.Client(api_key=here.key or "any", vertexai=False, http_options=genai_types.HttpOptions(**options))


async def call(here: Served, function: Callable[[Any], T], **more: Any) -> T:
    """What a function does with Google's client, which is no client of Trio: in a thread."""

    def run() -> T:
        with client_of(here, **more) as client:
            return function(client)

    return await trio.to_thread.run_sync(run)


async def ask(here: Served, contents: Any = "hello", **config: Any) -> Any:
    asked = {"model": MODEL, "contents": contents, "config": config}
    return await call(here, lambda client: client.models.generate_content(**asked))


async def streamed(here: Served, contents: Any = "hello", **config: Any) -> list[Any]:
    asked = {"model": MODEL, "contents": contents, "config": config}
    return await call(here, lambda client: [*client.models.generate_content_stream(**asked)])


async def fetch(here: Served, verb: str, path: str, body: Any = None, **headers: str) -> Any:
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        url = f"http://127.0.0.1:{here.port}/{path}"
        return await client.request(verb, url, headers=headers, json=body)


async def test_an_answer() -> None:
    async with served(Rule(match="hello", reply="Hello yourself."), prices={MODEL: Price(1.0, 2.0)}) as here:
        said = await ask(here, system_instruction="Be kind.", max_output_tokens=500, stop_sequences=["END"], top_p=0.9)
        raw = await fetch(here, "POST", f"v1beta/{GENERATE}", {"contents": USER})

    [candidate] = said.candidates
    assert (said.text, candidate.content.role, candidate.finish_reason.value) == ("Hello yourself.", "model", "STOP")
    assert said.model_version == MODEL
    assert len(said.response_id) == 24
    usage = said.usage_metadata
    assert usage.prompt_token_count > 0
    assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count
    assert raw.json()["usageMetadata"]["cost"] == pytest.approx(float(raw.headers["x-agentos-cost"]))
    asked = here.asked[0]
    assert (asked.system, asked.max_tokens, asked.stop, asked.sampling.top_p) == ("Be kind.", 500, ["END"], 0.9)
    assert asked.messages == [Message("user", "hello")]


async def test_a_stream() -> None:
    async with served(Rule(match="hello", reply="one two three")) as here:
        pieces = await streamed(here)

    assert "".join(piece.text or "" for piece in pieces) == "one two three"
    assert [bool(piece.candidates[0].finish_reason) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].usage_metadata.candidates_token_count > 0
    assert len({piece.response_id for piece in pieces}) == 1


async def test_a_stream_comes_as_it_is_said() -> None:
    async with served(Rule(match="hello", reply="one two"), offline=OfflineSettings(per_output=2)) as here:
        ended = list[int]()

        def read(client: Any) -> None:
            for piece in client.models.generate_content_stream(model=MODEL, contents="hello"):
                if piece.text == "one ":
                    ended.append(trio.from_thread.run_sync(lambda: len(here.ended)))

        await call(here, read)

    assert (ended, here.ended) == ([0], ["answered"])


@pytest.mark.parametrize("version", ["v1", "v1beta", "v1alpha"])
async def test_without_events_a_stream_is_an_array(version: str) -> None:
    async with served(Rule(match="hello", reply="one two three")) as here:
        found = await fetch(here, "POST", f"{version}/{STREAM}", {"contents": USER})
        events = await fetch(here, "POST", f"{version}/{STREAM}?alt=sse", {"contents": USER})
        wrong = await fetch(here, "POST", f"{version}/{STREAM}?alt=proto", {"contents": USER})

    assert found.headers["content-type"] == "application/json"
    texts = [piece["candidates"][0]["content"]["parts"][0]["text"] for piece in found.json()]
    assert "".join(texts) == "one two three"
    assert len(texts) > 1
    assert events.headers["content-type"] == "text/event-stream"
    assert all(line.startswith("data: {") for line in events.text.strip().split("\r\n\r\n"))
    assert (wrong.status_code, wrong.json()["error"]["message"][:4]) == (400, "alt:")


@pytest.mark.parametrize("alt", ["?alt=sse", ""])
async def test_a_stream_that_breaks_off_says_so(alt: str) -> None:
    async with served(Rule(match="hello", reply="one two", fail="failing")) as here:
        found = await fetch(here, "POST", f"v1beta/{STREAM}{alt}", {"contents": USER})
        with pytest.raises(genai.errors.ServerError, match="the model's provider"):
            await streamed(here)

    events = [json.loads(line[6:]) for line in found.text.split("\r\n") if line] if alt else found.json()
    assert (found.status_code, events[-1]["error"]["status"]) == (200, "UNAVAILABLE")
    heard = [piece["candidates"][0]["content"]["parts"][0]["text"] for piece in events[:-1]]
    assert "".join(heard) == "one two"


@pytest.mark.parametrize("streams", [False, True])
async def test_functions_are_called_and_answered_in_a_chat(streams: bool) -> None:
    def talk(client: Any) -> tuple[list[Any], str]:
        disable = {"disable": True}
        config = {"tools": [{"function_declarations": [WEATHER]}], "automatic_function_calling": disable}
        chat = client.chats.create(model=MODEL, config=config)

        def say(message: Any) -> list[Any]:
            return [*chat.send_message_stream(message)] if streams else [chat.send_message(message)]

        parts = [part for piece in say("weather in Paris") for part in piece.candidates[0].content.parts]
        [called] = [part.function_call for part in parts if part.function_call]
        said = "".join(part.text or "" for part in parts)
        part = genai_types.Part.from_function_response(name=called.name, response={"output": "rain"})
        return [said, called.name, called.args], "".join(piece.text or "" for piece in say(part))

    async with served(*RULES) as here:
        called, again = await call(here, talk)

    assert called == ["Let me look.", "weather", {"place": "Paris"}]
    assert again == "It says: rain"
    _, asked, result = here.asked[-1].messages
    assert (asked.text, asked.calls[0].id) == ("Let me look.", result.answers)


async def test_the_sdk_calls_functions_by_itself() -> None:
    def weather(place: str) -> str:
        """The weather at a place."""
        return f"sun at {place}"

    async with served(*RULES) as here:
        said = await call(
            here,
            lambda client: (
                client.chats.create(model=MODEL, config={"tools": [weather]}).send_message("it in Paris").text
            ),
        )

    assert said == 'It says: {"result":"sun at Paris"}'
    assert here.asked[0].tools[0].parameters["properties"] == {"place": {"type": "string"}}


@pytest.mark.parametrize("vendor_name", ["gemini", "openai", "anthropic"])
@pytest.mark.parametrize("streams", [False, True])
async def test_signatures_and_cached_input_pass_through_to_any_vendor(vendor_name: Any, streams: bool) -> None:
    calls = [ToolCall("c1", "weather", {"place": "Rome"}, "/+8="), ToolCall("c2", "weather", {})]
    async with behind(vendor_name) as (here, vendor):
        used = Usage(100, 5, 2, cache_read=60)
        vendor.will(Says([Thoughts("Hm."), Text("Let me look."), *map(Called, calls)], usage=used))
        vendor.will(Says([Text("rain")]))
        contents: list[Any] = [genai_types.UserContent("weather in Rome")]
        asked: Any = {"model": "a-model", "config": {"tools": [{"function_declarations": [WEATHER]}]}}

        def talk(client: Any) -> tuple[Any, str]:
            if streams:
                pieces = [*client.models.generate_content_stream(contents=contents, **asked)]
                contents.extend(piece.candidates[0].content for piece in pieces)
                usage = pieces[-1].usage_metadata
            else:
                answer = client.models.generate_content(contents=contents, **asked)
                contents.append(answer.candidates[0].content)
                usage = answer.usage_metadata
            results = [genai_types.Part.from_function_response(name="weather", response={"n": n}) for n in (1, 2)]
            contents.append(genai_types.UserContent(results))
            return usage, client.models.generate_content(contents=contents, **asked).text

        usage, said = await call(here, talk)

    assert said == "rain"
    assert (usage.prompt_token_count, usage.cached_content_token_count, usage.total_token_count) == (100, 60, 107)
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (5, 2)
    _, history, one, two = here.asked[-1].messages
    assert history.text == "Let me look."
    assert [call.arguments for call in history.calls] == [{"place": "Rome"}, {}]
    beginning = {
        "gemini": "/+8=",
        "openai": '{"message":{"reasoning_content":"Hm."',
        "anthropic": '[{"type":"thinking",',
    }
    assert str(history.calls[0].signature).startswith(beginning[vendor_name])
    assert [one.answers, two.answers] == [call.id for call in history.calls]
    assert (one.text, two.text) == ('{"n":1}', '{"n":2}')


async def test_an_image() -> None:
    async with served() as here:
        await ask(here, [genai_types.Part.from_bytes(data=PNG, mime_type="image/png"), "what?"])

    in_order = (Block("image"), Block("text", 0, 5))
    assert here.asked[0].messages == [Message("user", "what?", (Image(PNG, "image/png"),), blocks=in_order)]


async def test_structured_output() -> None:
    schema = {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}, "required": ["n"]}
    async with served() as here:
        said = await ask(here, response_mime_type="application/json", response_schema=schema)

    assert here.asked[0].response_schema == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    assert isinstance(json.loads(said.text)["n"], int)


async def test_tokens_are_counted_without_a_question() -> None:
    notebook = Notebook()
    async with served(notebook=notebook) as here:
        counted = await call(here, lambda client: client.models.count_tokens(model=MODEL, contents="hello"))
        raw = await fetch(here, "POST", f"v1beta/models/{MODEL}:countTokens", {"contents": USER})

    assert raw.json() == {"totalTokens": counted.total_tokens, "estimated": True}
    assert counted.total_tokens > 0
    assert (here.asked, notebook.entries) == ([], [])


async def test_embeddings() -> None:
    asked: Any = {"model": MODEL, "contents": ["red", "blue"], "config": {"output_dimensionality": 16}}
    async with served() as here:
        many = await call(here, lambda client: client.models.embed_content(**asked))
        one = await fetch(here, "POST", f"v1beta/models/{MODEL}:embedContent", {"content": USER[0]})

    assert [len(each.values) for each in many.embeddings] == [16, 16]
    assert many.embeddings[0].values != many.embeddings[1].values
    assert len(one.json()["embedding"]["values"]) == 256
    assert one.json()["usageMetadata"]["promptTokenCount"] > 0
    assert [question.embed for question in here.asked] == [True, True]


async def test_models() -> None:
    async with served() as here:
        names = await call(here, lambda client: [each.name for each in client.models.list()])
        found = await call(here, lambda client: client.models.get(model=MODEL))
        with pytest.raises(genai.errors.ClientError, match="there is no model 'gemini-9'") as refused:
            await call(here, lambda client: client.models.get(model="gemini-9"))
        async with here.client() as other:
            assert (await other.models.retrieve(MODEL)).object == "model"

    assert names == [f"models/{MODEL}"]
    assert (found.display_name, "generateContent" in found.supported_actions) == (MODEL, True)
    assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")


@pytest.mark.parametrize("way", ["x-goog-api-key", "x-api-key", "authorization", "key"])
async def test_only_a_client_with_the_key_comes_in(way: str) -> None:
    async def knock(key: str) -> Any:
        if way == "key":
            return await fetch(here, "GET", f"v1beta/models?pageSize=5&key={key}")
        value = f"Bearer {key}" if way == "authorization" else key
        return await fetch(here, "GET", "v1beta/models", **{way: value})

    async with served(key="the-key") as here:
        refused = [await knock(wrong) for wrong in ("another-key", "the-ke", "the-key2")]
        taken = await knock("the-key")

    assert {each.status_code for each in refused} == {401}
    assert refused[0].json()["error"]["status"] == "UNAUTHENTICATED"
    assert taken.status_code == 200


async def test_a_mistake_is_named() -> None:
    async with served() as here:
        with pytest.raises(genai.errors.ClientError) as error:
            await ask(here, tools=[{"google_search": {}}])

    [detail] = error.value.details["error"]["details"]
    assert (error.value.code, error.value.status) == (400, "INVALID_ARGUMENT")
    assert detail["fieldViolations"][0]["field"] == "tools[0].googleSearch"
    assert here.asked == []


async def test_what_the_vendor_is_not_sent_is_told() -> None:
    notebook = Notebook()
    settings = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    async with served(notebook=notebook) as here:
        found = await fetch(here, "POST", f"v1beta/{GENERATE}", {"contents": USER, "safetySettings": settings})

    assert found.headers["x-agentos-left-out"] == "safetySettings"
    assert "safetySettings" in repr(notebook.entries[0])


async def test_paths_of_other_protocols_are_theirs_whatever_the_headers() -> None:
    google = {"x-goog-api-key": "any"}
    asked: Any = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    async with served() as here:
        chat = await fetch(here, "POST", "v1/chat/completions", asked, **google)
        message = await fetch(here, "POST", "v1/messages", asked, **google)
        nothing = await fetch(here, "POST", "v1/cachedContents", {}, **google)

    assert (chat.json()["object"], message.json()["type"]) == ("chat.completion", "message")
    assert (nothing.status_code, nothing.json()["error"]["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("refusal", "code", "status"),
    [
        (Refuses(400, "not like this"), 400, "INVALID_ARGUMENT"),
        (Refuses(401), 401, "UNAUTHENTICATED"),
        (Refuses(403), 403, "PERMISSION_DENIED"),
        (Refuses(404, "no such model"), 404, "NOT_FOUND"),
        (Refuses(429, after=1000), 429, "RESOURCE_EXHAUSTED"),
        (Refuses(503), 503, "UNAVAILABLE"),
    ],
    ids=str,
)
async def test_what_the_vendor_refuses_arrives_in_googles_shape(refusal: Refuses, code: int, status: str) -> None:
    async with behind("gemini") as (here, vendor):
        vendor.will(refusal)
        found = await fetch(here, "POST", "v1beta/models/a-model:generateContent", {"contents": USER})

    error = found.json()["error"]
    assert (found.status_code, error["code"], error["status"]) == (code, code, status)
    assert vendor.key[:8] not in found.text
    assert "API_KEY" not in found.text


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", f"v1beta/{GENERATE}"),
        ("POST", "v1beta/models"),
        ("POST", f"v1beta/models/{MODEL}:predict"),
        ("POST", f"v1/models/{MODEL}"),
        ("POST", "v1beta/models/:generateContent"),
        ("POST", "v1beta/cachedContents"),
        ("GET", "v1beta/files"),
        ("DELETE", f"v1beta/models/{MODEL}"),
    ],
)
async def test_there_is_nothing_else(verb: str, path: str) -> None:
    async with served() as here:
        found = await fetch(here, verb, path, {} if verb == "POST" else None)

    assert (found.status_code, found.json()["error"]["status"]) == (404, "NOT_FOUND")
    assert here.asked == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (PermissionDenied("not you"), 403, "PERMISSION_DENIED"),
        (Unavailable("it is down"), 503, "UNAVAILABLE"),
        (Internal("a bug"), 500, "INTERNAL"),
    ],
)
async def test_errors_have_googles_shape(error: CallError, code: int, status: str, streams: bool) -> None:
    def refuse(question: Question) -> None:
        raise error

    async with served(think=refuse) as here:
        with pytest.raises(genai.errors.APIError, match=str(error)) as told:
            await (streamed if streams else ask)(here)

    assert (told.value.code, told.value.status) == (code, status)
    assert len(here.asked) == 1


async def test_a_budget_that_is_used_up_says_when_it_renews() -> None:
    async with served(budget=[Quota("calls", 1, 86400)]) as here:
        await ask(here)
        with pytest.raises(genai.errors.ClientError) as error:
            await ask(here)

    [detail] = error.value.details["error"]["details"]
    assert (error.value.code, error.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert detail["@type"].endswith("RetryInfo")
    assert 0 < int(detail["retryDelay"].removesuffix("s")) <= 86400


async def test_a_question_is_recorded_once_as_a_think_of_its_agent() -> None:
    notebook = Notebook()
    async with served(notebook=notebook) as here:
        await ask(here)
        await streamed(here)

    assert [(entry.call, entry.outcome, entry.decision) for entry in notebook.entries] == [("THINK", "ok", "allow")] * 2


async def test_a_refused_question_never_reaches_the_line() -> None:
    async with served(grants=Grants(denied=["think"])) as here:
        with pytest.raises(genai.errors.ClientError, match="PERMISSION_DENIED"):
            await ask(here)

    assert here.asked == []
