"""The simulated provider does to OpenAI's package what it was told to do; how fast, is not asked here."""

import itertools
from collections.abc import AsyncIterator

import pytest
import trio

from tests.support.clients import openai
from tests.support.wire import PATIENCE

from .figures import Log
from .simulation.play import log, simulator
from .simulation.simulator import Asked, Behaviour
from .simulation.strategies import MODEL

pytestmark = [  # OpenAI's package leaves the generators of a stream that has ended to the garbage collector
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

AT_ONCE = Behaviour(base=0.0, per_input=0.0, per_output=0.0)
NEVER = 3600.0  # seconds


async def ask(url: str, id: str, output: int = 30) -> tuple[str, int, int]:
    """The text, and the tokens that the provider counted."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": Asked(id, 60, output).text()}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    usage = chunks[-1].usage
    assert usage is not None
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return text, usage.prompt_tokens, usage.completion_tokens


async def served(url: str) -> Log:
    return await trio.to_thread.run_sync(log, url)


@pytest.fixture
async def at_once() -> AsyncIterator[str]:
    with simulator(AT_ONCE) as url:
        yield url


async def test_an_answer_is_as_long_as_was_asked_and_is_counted(at_once: str) -> None:
    text, tokens_in, tokens_out = await ask(at_once, "a/0", 30)

    assert (text, tokens_in, tokens_out) == (" tok" * 30, 60, 30)
    (record,) = (await served(at_once)).served
    assert (record.id, record.input, record.output, record.fate) == ("a/0", 60, 30, "answered")


async def test_a_question_that_does_not_say_what_it_is_is_refused(at_once: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{at_once}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "?"}])


async def begun(url: str, n: int) -> None:
    with trio.fail_after(PATIENCE):
        while len((await served(url)).served) < n:
            await trio.sleep(0.01)


async def test_a_request_that_finds_no_room_is_turned_away() -> None:
    with simulator(Behaviour(slots=1, base=NEVER, room=0)) as url:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, url, "a/0")
            await begun(url, 1)

            with pytest.raises(openai.RateLimitError):
                await ask(url, "b/0")

            nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_frees_its_slot_and_is_told_apart() -> None:
    with simulator(Behaviour(slots=1, base=0.0, per_input=0.0, per_output=NEVER)) as url:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, url, "a/0")
            await begun(url, 1)
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, url, "b/0")
            await begun(url, 2)
            nursery.cancel_scope.cancel()

        left = (await served(url)).served[0]

    assert (left.id, left.output, left.fate) == ("a/0", 0, "gone")


async def test_slots_are_given_in_the_order_of_arrival() -> None:
    with simulator(Behaviour(slots=1, base=0.05, per_input=0.0, per_output=0.0)) as url:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(ask, url, f"a/{number}")

        records = (await served(url)).served

    assert len(records) == 5
    assert all(before.ended <= after.began for before, after in itertools.pairwise(records))


async def test_a_window_that_is_full_says_when_the_next_one_begins() -> None:
    with simulator(Behaviour(base=0.0, per_input=0.0, per_output=0.0, window=NEVER, requests=1)) as url:
        await ask(url, "a/0")

        with pytest.raises(openai.RateLimitError) as caught:
            await ask(url, "a/1")

    assert 0 < int(caught.value.response.headers["Retry-After"]) <= NEVER


async def test_faults_are_the_same_at_every_run() -> None:
    async def fates() -> list[str]:
        with simulator(Behaviour(base=0.0, per_input=0.0, per_output=0.0, faults=0.5, seed=3)) as url:
            return [await fate(url, f"a/{number}") for number in range(12)]

    async def fate(url: str, id: str) -> str:
        try:
            await ask(url, id)
        except openai.APIStatusError as error:
            return str(error.status_code)
        except Exception as error:
            return type(error).__name__
        return "answered"

    first = await fates()
    assert first == await fates()
    assert {"answered", "500", "503"} < set(first)
