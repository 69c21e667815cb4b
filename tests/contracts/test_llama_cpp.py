"""What llama.cpp's server keeps of the contract, as a provider: it says what its model was made to say."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.providers.choose import ProviderChoice, connect
from agentos.llm.providers.provider import Delta, Denied, Message, Provider, Question, Rejected
from agentos.llm.settings import LLMSettings
from tests.contracts.test_provider import MULTIPLY, QUESTION, deaf

PYTHON = Path(sys.prefix, "llama-cpp/bin/python")
SERVER = Path(__file__).parents[1] / "frameworks/inside/serves_llama_cpp.py"
KEY = "sk-llama"
ANSWER = "It is forty-two, 数"


@pytest.fixture(scope="module")
def url(framework: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}, run `make test-frameworks`: llama.cpp's server is NOT tested as provider")
    place = tmp_path_factory.mktemp("llama")
    with (place / "stderr").open("wb") as stderr:
        words = [str(PYTHON), str(SERVER), str(place / "model.gguf"), KEY]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr)
        assert process.stdout is not None
        try:
            found = process.stdout.readline().decode().strip()
            assert found, (place / "stderr").read_text()
            yield f"{found}/v1"
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


async def reach(url: str, key: str) -> Provider:
    return await connect(ProviderChoice("openai", "a-model", url, key, "OPENAI_API_KEY"), LLMSettings())


@pytest.fixture
async def provider(url: str) -> AsyncIterator[Provider]:
    made = await reach(url, KEY)
    yield made
    await made.aclose()


async def test_an_answer_is_heard_in_pieces_returned_whole_and_counted(provider: Provider) -> None:
    heard: list[Delta] = []

    answer = await provider.answer(QUESTION, heard.append)

    assert [delta.text for delta in heard if delta.text] == ["It is ", "forty-", "two, 数"]
    assert (answer.text, answer.finish_reason, answer.calls) == (ANSWER, "stop", ())
    assert answer.usage.input > 0
    assert answer.usage.output == 4


async def test_a_tool_is_called_and_its_result_goes_back(provider: Provider) -> None:
    question = replace(QUESTION, tools=[MULTIPLY])
    asked = await provider.answer(question, deaf)
    result = Message("tool", "42", answers=asked.calls[0].id)
    answered = await provider.answer(
        replace(question, messages=[*question.messages, Message("assistant", "", calls=asked.calls), result]), deaf
    )

    assert [(call.name, call.arguments) for call in asked.calls] == [("multiply", {"a": 6})]
    assert asked.finish_reason == "tool_calls"
    assert (answered.text, answered.finish_reason) == (ANSWER, "stop")


async def test_an_answer_has_at_most_so_many_tokens(provider: Provider) -> None:
    answer = await provider.answer(replace(QUESTION, max_tokens=2), deaf)

    assert (answer.text, answer.finish_reason) == ("It is forty-", "length")


async def test_an_answer_keeps_a_schema(provider: Provider) -> None:
    answer = await provider.answer(replace(QUESTION, response_schema={"const": "other"}), deaf)

    assert answer.text == '"other"'


async def test_an_error_is_named_by_what_can_be_done_about_it(provider: Provider, url: str) -> None:
    other = await reach(url, "sk-wrong")
    with pytest.raises(Denied):
        await other.answer(QUESTION, deaf)
    await other.aclose()
    with pytest.raises(Rejected, match="exceeds the available context size"):
        await provider.answer(Question("a-model", [Message("user", "x" * 3000)]), deaf)

    assert (await provider.answer(QUESTION, deaf)).text == ANSWER


async def test_many_questions_may_be_under_way_and_one_may_leave(provider: Provider) -> None:
    answers: list[str] = []

    async def ask() -> None:
        answers.append((await provider.answer(QUESTION, deaf)).text)

    async def leave() -> None:
        with trio.CancelScope() as scope:
            await provider.answer(QUESTION, lambda delta: scope.cancel())

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
            nursery.start_soon(leave)

    assert answers == [ANSWER] * 8
