"""The models that the clients of all three vendors may name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.llm.providers.choose import NoProvider
from agentos.llm.settings import Price, ProviderSettings
from tests.gateways.served import MODEL, Served, served
from tests.support.clients import anthropic, genai, genai_types, openai
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

# The SDKs': whoever reads a stream to its end leaves its generators to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(httpx2|openai|anthropic|httpcore):ResourceWarning",
)

ROUTED: Any = {
    "providers": {"offline": ProviderSettings(type="offline", models=(MODEL, "small", "tiny-*"))},
    "aliases": {"fast": ["tiny-1", "small"], "gpt-*": ["small"]},
}
PRICES = {"tiny-1": Price(100.0, 100.0), "small": Price(1.0, 2.0)}
USER: Any = [{"role": "user", "content": "hello"}]


def claude(here: Served) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=here.url.removesuffix("/v1"), api_key="any", timeout=PATIENCE, max_retries=0
    )


async def complete(here: Served, model: str) -> str:
    async with here.client(max_retries=0) as client:
        said = await client.chat.completions.create(model=model, messages=USER)
        return str(said.model)


async def stream(here: Served, model: str) -> str:
    async with here.client(max_retries=0) as client:
        pieces = await client.chat.completions.create(model=model, messages=USER, stream=True)
        return [piece.model async for piece in pieces][-1]


async def respond(here: Served, model: str) -> str:
    async with here.client(max_retries=0) as client:
        return str((await client.responses.create(model=model, input="hello")).model)


async def embed(here: Served, model: str) -> str:
    async with here.client(max_retries=0) as client:
        return str((await client.embeddings.create(model=model, input="hello")).model)


async def message(here: Served, model: str) -> str:
    async with claude(here) as client:
        return str((await client.messages.create(model=model, messages=USER, max_tokens=50)).model)


async def content(here: Served, model: str) -> str:
    def ask() -> str:
        options = genai_types.HttpOptions(base_url=here.url.removesuffix("/v1"), timeout=int(PATIENCE * 1000))
        with genai.Client(api_key="any", vertexai=False, http_options=options) as client:
            return str(client.models.generate_content(model=model, contents="hello").model_version)

    return await trio.to_thread.run_sync(ask)


class NotTiny(Grants):
    def decide(self, caller: Caller, right: Right) -> Decision:
        if right == Right("think", "tiny-1"):
            return Decision("deny", "the rule", "nobody may ask tiny-1")
        return super().decide(caller, right)


def cost_of_small(usage: Any) -> float:
    """Checks that the answer has it as well."""
    cost = (usage.prompt_tokens * 1.0 + usage.completion_tokens * 2.0) / 1e6
    assert usage.cost == pytest.approx(cost)
    return float(cost)


async def count(here: Served, model: str) -> str:
    """Only for what is refused."""
    async with claude(here) as client:
        return str(await client.messages.count_tokens(model=model, messages=USER))


Ask = Callable[[Served, str], Awaitable[str]]
EVERY_WAY = pytest.mark.parametrize("ask", [complete, stream, respond, embed, message, content])


async def test_aliases_and_models_are_listed_and_patterns_are_not() -> None:
    async with served(**ROUTED) as here, here.client() as client, claude(here) as other:
        names = [MODEL, "fast", "tiny-1", "small"]
        assert [model.id async for model in client.models.list()] == names
        assert [model.id async for model in other.models.list()] == names
        for name in ("fast", "gpt-9", "tiny-7", "models/small"):  # a pattern has names that aren't listed
            assert (await client.models.retrieve(name)).id == (await other.models.retrieve(name)).id == name
        for name in ("large", "models/large"):
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(name)
            with pytest.raises(anthropic.NotFoundError):
                await other.models.retrieve(name)


async def test_whether_a_provider_of_all_models_has_one_is_not_claimed() -> None:
    async with served() as here, here.client() as client:
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("another")


@EVERY_WAY
async def test_the_answer_names_the_model_that_an_alias_stood_for(ask: Ask) -> None:
    async with served(**ROUTED) as here:
        names = ("fast", "gpt-9", "small", "tiny-7", "models/small")
        assert [await ask(here, name) for name in names] == ["tiny-1", "small", "small", "tiny-7", "small"]


@pytest.mark.parametrize("ask", [complete, stream, respond, embed, message, count, content])
async def test_a_model_that_no_provider_has_is_404_and_nothing_is_asked(ask: Ask) -> None:
    notebook = Notebook()
    async with served(**ROUTED, notebook=notebook) as here:
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError, genai.errors.ClientError)) as refused:
            await ask(here, "large")

    error: Any = getattr(refused.value, "body", None)
    assert "there is no model 'large'" in str(refused.value)
    if ask is content:
        assert refused.value.status == "NOT_FOUND"  # type: ignore[attr-defined]
    elif ask in (message, count):
        assert error["error"]["type"] == "not_found_error"
    else:
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert (here.asked, notebook.entries) == ([], [])


@EVERY_WAY
async def test_without_a_provider_every_model_is_503(ask: Ask) -> None:
    async with served(choice=NoProvider("no key is set"), model="") as here:
        with pytest.raises((openai.InternalServerError, anthropic.APIStatusError, genai.errors.ServerError)) as refused:
            await ask(here, "large")

    assert (getattr(refused.value, "status_code", None) or refused.value.code) == 503  # type: ignore[attr-defined]
    assert "no key is set" in str(refused.value)


async def test_the_cost_is_that_of_the_model_that_answered_and_headers_say_which_was_passed_over() -> None:
    async with (
        served(**ROUTED, prices=PRICES, grants=NotTiny()) as here,
        here.client() as client,
        claude(here) as other,
    ):
        completions, messages = client.chat.completions.with_raw_response, other.messages.with_raw_response
        whole = await completions.create(model="fast", messages=USER)
        sent = await messages.create(model="fast", messages=USER, max_tokens=50)
        plain = await completions.create(model="small", messages=USER)
        last = [each async for each in await client.responses.create(model="fast", input="hello", stream=True)][-1]
        models = (whole.parse().model, (await sent.parse()).model)

    assert models == ("small", "small")
    assert whole.headers["x-agentos-fallbacks"] == sent.headers["x-agentos-fallbacks"] == "tiny-1"
    assert float(whole.headers["x-agentos-cost"]) == pytest.approx(cost_of_small(whole.parse().usage))
    assert float(sent.headers["x-agentos-cost"]) > 0
    assert "x-agentos-fallbacks" not in plain.headers
    ended: Any = last
    assert (ended.type, ended.response.model, ended.response.usage.cost > 0) == ("response.completed", "small", True)
