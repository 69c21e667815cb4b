"""OpenAI's own client, with a vendor behind the kernel: what is forwarded, and what becomes of its refusals."""

import json
from typing import Any

import pytest

from agentos.llm.settings import ProviderName
from tests.gateways.served import Served, behind
from tests.llm.vendors.script import Raw, Refuses, Says, Text
from tests.support.clients import httpx2, openai
from tests.support.wire import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|openai|httpcore):ResourceWarning")

SETTINGS: dict[str, Any] = {
    "top_p": 0.5,
    "seed": 7,
    "presence_penalty": -1.5,
    "frequency_penalty": 2.0,
    "logit_bias": {"50256": -100.0},
    "logprobs": True,
    "top_logprobs": 2,
    "verbosity": "low",
    "parallel_tool_calls": False,
}
OF_GEMINI = {
    "top_p": "topP",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}


async def ask(here: Served, **more: Any) -> Any:
    """The answer, or the chunks of a stream."""
    asked = {"model": "a-model", "messages": [{"role": "user", "content": "hello"}], **more}
    async with here.client() as client:
        answer: Any = await client.chat.completions.create(**asked)
        if not more.get("stream"):
            return answer
        async with answer:
            return [chunk async for chunk in answer]


async def test_what_openai_takes_is_forwarded() -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Says([Text("yes")]))
        await ask(here, **SETTINGS)

    [exchange] = vendor.exchanges
    assert {name: exchange.body.get(name) for name in SETTINGS} == SETTINGS


async def test_what_is_left_out_is_not_sent() -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Says([Text("yes")]))
        await ask(here)

    [exchange] = vendor.exchanges
    assert not exchange.body.keys() & SETTINGS.keys()


async def test_what_gemini_takes_is_forwarded() -> None:
    async with behind("gemini") as (here, vendor):
        vendor.will(Says([Text("yes")]))
        await ask(here, parallel_tool_calls=True, logprobs=False, **{name: SETTINGS[name] for name in OF_GEMINI})

    [exchange] = vendor.exchanges
    sent = exchange.body["generationConfig"]
    assert {name: sent[theirs] for name, theirs in OF_GEMINI.items()} == {name: SETTINGS[name] for name in OF_GEMINI}


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - OF_GEMINI.keys()))
async def test_what_gemini_does_not_take_is_refused_by_name(name: str) -> None:
    async with behind("gemini") as (here, vendor):
        with pytest.raises(openai.BadRequestError, match="gemini") as caught:
            await ask(here, **{name: SETTINGS[name]})

    assert (caught.value.param, vendor.exchanges) == (name, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 1.5),
        ("seed", "7"),
        ("presence_penalty", -3),
        ("frequency_penalty", 2.5),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {str(number): 1 for number in range(2000)}),
        ("top_logprobs", 21),
        ("verbosity", "chatty"),
        ("parallel_tool_calls", "yes"),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    async with behind("openai") as (here, vendor):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(here, **{name: value})

    assert (str(caught.value.param).partition(".")[0], vendor.exchanges) == (name, [])


def of_token(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []}


def piece(text: str) -> Raw:
    logprobs = {"content": [of_token(text)], "refusal": None}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": None}
    return Raw(f"data: {json.dumps({'model': 'a-model', 'choices': [choice]})}\n\n".encode())


async def test_logprobs_come_back() -> None:
    said = 'it says "logprobs":null'
    async with behind("openai") as (here, vendor):
        vendor.will(*[Says([piece(said), piece("!")])] * 2)
        whole = await ask(here, logprobs=True)
        chunks = await ask(here, logprobs=True, stream=True)

    assert whole.choices[0].message.content == said + "!"
    assert [entry.token for entry in whole.choices[0].logprobs.content] == [said, "!"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said + "!"
    streamed = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs is not None]
    assert [entry.token for logprobs in streamed for entry in logprobs.content] == [said, "!"]


@pytest.mark.parametrize(
    ("refusal", "error", "code"),
    [
        (Refuses(404, "no such model"), "NotFoundError", "model_not_found"),
        (Refuses(422, "unprocessable"), "UnprocessableEntityError", "invalid_request"),
        (Refuses(429, "slow down", after=3000), "RateLimitError", "rate_limit_exceeded"),
        (Refuses(429, "no money", reason="insufficient_quota"), "RateLimitError", "insufficient_quota"),
        (Refuses(401, "wrong key"), "AuthenticationError", "invalid_api_key"),
        (Refuses(403, "not yours"), "PermissionDeniedError", "permission_denied"),
        (Refuses(400, "no"), "BadRequestError", "bad_request"),
        (Refuses(500, "broken"), "InternalServerError", "unavailable"),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_provider_is_the_error_that_clients_expect(
    refusal: Refuses, error: str, code: str, stream: bool
) -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(refusal)
        with pytest.raises(getattr(openai, error)) as caught:
            await ask(here, stream=stream)

    assert type(caught.value).__name__ == error
    assert caught.value.code == code
    assert len(vendor.exchanges) == 1
    if refusal.after is not None:
        assert 500 <= int(caught.value.response.headers["retry-after"]) <= 3000
    if refusal.status in (401, 403):
        text = caught.value.response.text
        assert vendor.key not in text
        assert vendor.key[:8] not in text
        assert "API_KEY" not in text


NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
GOOGLE = {"extra_content": {"google": {"thought_signature": "c2lnbg=="}}}
OTHER = {"extra_content": {"other": {"state": [1, 2]}}}
DETAILS = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "abc", "index": 0}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("of_message", "of_call"),
    [({"reasoning_content": "hm"}, {}), (DETAILS, {}), ({}, GOOGLE), ({"reasoning_content": "hm"}, OTHER)],
)
async def test_thoughts_reach_a_program_and_go_back_with_their_calls(
    of_message: dict[str, Any], of_call: dict[str, Any], stream: bool
) -> None:
    event = {"choices": [{"delta": {**of_message, "tool_calls": [{**CALL, **of_call}]}, "finish_reason": "tool_calls"}]}
    async with behind("openai") as (here, vendor):
        vendor.will(Says([Raw(f"data: {json.dumps(event)}\n\n".encode())], finish=None), Says([Text("noon")]))
        answer = await ask(here, tools=[NOW], stream=stream)
        said = (
            next(each.choices[0].delta for each in answer if each.choices[0].delta.tool_calls)
            if stream
            else (answer.choices[0].message)
        )
        message = {**said.model_dump(exclude_none=True), "role": "assistant"}
        result = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
        await ask(here, tools=[NOW], messages=[{"role": "user", "content": "when?"}, message, result])

    sent = vendor.exchanges[1].body["messages"][1]
    assert {**sent, "tool_calls": None, "content": None} == {
        **of_message,
        "role": "assistant",
        "content": None,
        "tool_calls": None,
    }
    [call] = sent["tool_calls"]
    assert {name: call[name] for name in call if name not in ("id", "type", "function")} == of_call


async def test_thoughts_go_back_by_responses_and_messages_as_well() -> None:
    event = {"choices": [{"delta": {"reasoning_content": "hm", "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}
    thinking, tool = Says([Raw(f"data: {json.dumps(event)}\n\n".encode())], finish=None), {"name": "now"}
    async with behind("openai") as (here, vendor):
        vendor.will(thinking, Says([Text("noon")]), thinking, Says([Text("noon")]))
        begun: list[Any] = [{"role": "user", "content": "when?"}]
        async with here.client() as client:
            tools: list[Any] = [{"type": "function", "parameters": {}, "strict": False, **tool}]
            answer = await client.responses.create(model="a-model", input=begun, tools=tools)
            output = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
            history: list[Any] = [*begun, *answer.output, output]
            await client.responses.create(model="a-model", input=history)
        for _ in range(2):
            fields = {"model": "a-model", "max_tokens": 100, "messages": begun, "tools": [{**tool, "input_schema": {}}]}
            async with httpx2.AsyncClient() as client:
                reply = await client.post(f"http://127.0.0.1:{here.port}/v1/messages", json=fields, timeout=PATIENCE)
            said = reply.json()
            block = said["content"][0]
            result = {"type": "tool_result", "tool_use_id": block.get("id"), "content": "noon"}
            begun += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": [result]}]

    for exchange in (vendor.exchanges[1], vendor.exchanges[3]):
        assert exchange.body["messages"][1]["reasoning_content"] == "hm"
        assert exchange.body["messages"][1]["tool_calls"][0]["id"] == "c1"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_json_mode_over_claude_is_any_json_object(stream: bool) -> None:
    async with behind("anthropic") as (here, vendor):
        vendor.will(Says([Text('```json\n{"a"'), Text(": 1}\n```")]))
        said = await ask(here, response_format={"type": "json_object"}, stream=stream)

    text = "".join(each.choices[0].delta.content or "" for each in said) if stream else said.choices[0].message.content
    assert text == '{"a": 1}'


LOOK: Any = {"name": "look", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}


@pytest.mark.parametrize("name", ["openai", "anthropic"])
@pytest.mark.parametrize("strict", [True, False, None])
async def test_a_strict_function_is_strict_at_the_vendor(name: ProviderName, strict: bool | None) -> None:
    async with behind(name) as (here, vendor):
        vendor.will(Says([Text("ok")]))
        await ask(here, tools=[{"type": "function", "function": {**LOOK, "strict": strict}}])

    [tool] = vendor.exchanges[0].body["tools"]
    assert tool.get("function", tool).get("strict") is (True if strict else None)


@pytest.mark.parametrize("effort", ["none", "minimal", "xhigh"])
async def test_the_effort_is_asked_of_the_vendor(effort: Any) -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Says([Text("ok")]))
        await ask(here, reasoning_effort=effort)

    assert vendor.exchanges[0].body["reasoning_effort"] == effort


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_search_that_is_not_done_is_said(stream: bool) -> None:
    async with behind("openai") as (here, vendor), here.client() as client:
        vendor.will(Says([Text("ok")]))
        asked: Any = {"model": "a-model", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
        async with client.chat.completions.with_streaming_response.create(**asked, web_search_options={}) as raw:
            assert raw.headers["x-agentos-left-out"] == "web_search_options"
            await raw.read()


@pytest.mark.parametrize("fields", [{"modalities": ["text", "audio"]}, {"audio": {"voice": "a", "format": "wav"}}])
async def test_audio_is_refused_by_name(fields: Any) -> None:
    async with behind("openai") as (here, _):
        with pytest.raises(openai.BadRequestError, match="audio"):
            await ask(here, **fields)


LATER: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "system", "content": "Now in French."},
    {"role": "user", "content": "again"},
]


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
async def test_a_later_system_message_keeps_its_place(name: ProviderName) -> None:
    async with behind(name) as (here, vendor):
        vendor.will(Says([Text("ok")]))
        await ask(here, messages=LATER)

    question = vendor.exchanges[0].question
    assert question.system == "Be brief."
    texts = [message.text for message in question.messages]
    expected = "Now in French." if name == "openai" else "<system>\nNow in French.\n</system>"
    assert texts[:2] == ["hello", "hi"]
    assert "".join(texts[2:]) == expected + "again"


async def test_a_server_that_wants_it_first_gets_a_later_system_message_as_the_users() -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Refuses(400, "System message must be at the beginning."), Says([Text("ok")]))
        said = await ask(here, messages=LATER)

    assert said.choices[0].message.content == "ok"
    roles = [[each["role"] for each in exchange.body["messages"]] for exchange in vendor.exchanges]
    assert roles == [[each["role"] for each in LATER], ["system", "user", "assistant", "user", "user"]]


async def test_another_refusal_leaves_later_system_messages_as_they_are() -> None:
    async with behind("openai") as (here, vendor):
        vendor.will(Refuses(400, "The system prompt is too long."), Refuses(400, "too long"), Says([Text("ok")]))
        with pytest.raises(openai.BadRequestError, match="too long"):
            await ask(here, messages=LATER)
        await ask(here, messages=LATER)

    assert [each["role"] for each in vendor.exchanges[-1].body["messages"]] == [each["role"] for each in LATER]
