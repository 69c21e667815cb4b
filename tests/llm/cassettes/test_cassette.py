"""What a question is answered with from a cassette, in each of its modes, and what is said where there is nothing."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.cassettes.cassette import Cassette, CassetteProvider
from agentos.llm.providers.offline import Offline
from agentos.llm.providers.provider import Answer, Denied, Message, Provider, Question, Rejected
from agentos.llm.settings import CassetteMode, OfflineSettings
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import Tool


def question(*texts: str, **more: Any) -> Question:
    messages = [Message("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(texts)]
    return Question("offline", messages, **more)


async def ask(provider: Provider, asked: Question) -> str:
    return (await provider.answer(asked, lambda _: None)).text


@asynccontextmanager
async def opened(
    path: Path, mode: CassetteMode = "replay", provider: Provider | None = None
) -> AsyncIterator[CassetteProvider]:
    async def connect() -> Provider:
        return provider if provider is not None else Offline()

    opened = await Cassette.read(path, mode).connect(connect)
    yield opened
    await opened.aclose()


async def record(path: Path, *asked: Question) -> list[str]:
    async with opened(path, "record") as provider:
        return [await ask(provider, one) for one in asked]


async def test_recorded_answers_come_again_without_a_provider(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.jsonl", [question("red"), question("blue"), question("red", "[…]", "and more")]
    said = await record(path, *asked)
    async with opened(path) as provider:
        assert provider.provider is None
        again = [await ask(provider, one) for one in reversed(asked)]
    assert again == list(reversed(said)), "by their questions, in any order"


async def test_the_nth_equal_question_gets_the_nth_answer_and_no_further_one(tmp_path: Path) -> None:
    path, same = tmp_path / "a.jsonl", question("again")
    slow = Offline(OfflineSettings())
    answers = ["one", "two"]

    class Counting(Provider):
        async def answer(self, question: Question, on_delta: object) -> Answer:
            return Answer(answers.pop(0), (await slow.answer(question, lambda _: None)).usage, "stop", "m")

        async def aclose(self) -> None:
            await slow.aclose()

    async with opened(path, "record", Counting()) as provider:
        assert [await ask(provider, same), await ask(provider, same)] == ["one", "two"]
    async with opened(path) as provider:
        assert [await ask(provider, same), await ask(provider, same)] == ["one", "two"]
        with pytest.raises(Denied, match="asked 3 times, recorded 2"):
            await ask(provider, same)


async def test_a_miss_says_what_differs_and_shows_recorded_words_to_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, tool = tmp_path / "a.jsonl", Tool("look", Text("Looks."))
    await record(path, question("hi", "recorded words", "go on", system="be\nkind", tools=[tool]))
    asked = question("hi", "recorded words", "go on", system="be\nbrief", tools=[tool])
    async with opened(path) as provider:
        with pytest.raises(Denied, match=r"the same as entry 1 but for system, line 2$") as error:
            await ask(provider, asked)
        assert "kind" not in str(error.value)
        assert "recorded 'kind', asked 'brief'" in caplog.text
        with pytest.raises(Denied, match=r"but for tool_choice$"):
            await ask(provider, replace(asked, system="be\nkind", tool_choice="required"))
    async with opened(tmp_path / "none.jsonl") as provider:
        with pytest.raises(Denied, match="nothing is recorded"):
            await ask(provider, asked)


async def test_noise_is_masked_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "a.jsonl"
    [said] = await record(path, question("it is 12:01:33"))
    async with opened(path) as provider:
        assert await ask(provider, question("it is 13:44:09")) == said
    assert "equal only after masks: 1" in caplog.text


async def test_of_questions_that_differ_in_noise_the_same_one_is_answered_first(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.jsonl", [question("it is 12:01:33"), question("it is 13:44:09")]
    said = await record(path, *asked)
    assert said[0] != said[1]
    async with opened(path) as provider:
        assert await ask(provider, asked[1]) == said[1]
        assert await ask(provider, asked[0]) == said[0]


async def test_extend_asks_what_is_missing_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    await record(path, question("old"))
    before = path.read_text()
    async with opened(path, "extend") as provider:
        await ask(provider, question("old"))
        await ask(provider, question("new"))
    assert path.read_text().startswith(before)
    async with opened(path) as provider:
        assert "new" in await ask(provider, question("new"))


async def test_unused_answers_are_told_and_pruned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    await record(
        path, question("a"), question("b"), question("c", "answer", "old words"), question("c", "answer", "new")
    )
    async with opened(path) as provider:
        await ask(provider, question("a"))
        await ask(provider, question("c", "answer", "new"))
    assert "2 of 4 answers were not used: entries 2, 3 (stale)" in caplog.text
    async with opened(path, "prune") as provider:
        await ask(provider, question("a"))
    async with opened(path) as provider:
        with pytest.raises(Denied, match="the same as entry 1 but for message 1"):
            await ask(provider, question("b"))
        await ask(provider, question("a"))


async def test_record_begins_anew_but_not_before_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    await record(path, question("old"))
    before = path.read_text()
    await record(path)
    assert path.read_text() == before
    await record(path, question("new"))
    assert "old" not in path.read_text()


async def test_questions_at_once_are_sorted_by_when_they_were_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    arrived, turns = [trio.Event() for _ in range(8)], [trio.Event() for _ in range(8)]

    class Backwards(Offline):
        async def answer(self, question: Question, on_delta: Any) -> Answer:
            number = int(question.messages[0].text)
            arrived[number].set()
            if number + 1 < len(turns):
                await turns[number + 1].wait()
            return await super().answer(question, on_delta)

    async with opened(path, "record", Backwards()) as provider, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            await ask(provider, question(str(number)))
            turns[number].set()

        for number in range(8):
            nursery.start_soon(one, number)
            await arrived[number].wait()
    written = path.read_text()
    places = [written.index(f'"text": "{number}"') for number in range(8)]
    assert places == sorted(places)


async def test_forty_questions_of_eight_callers_get_their_own_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    asked = [question(f"word {number}" if number % 4 else "the same") for number in range(40)]
    await record(path, *asked)
    got = dict[int, str]()
    async with opened(path) as provider, trio.open_nursery() as nursery:

        async def some(first: int) -> None:
            for number in range(first, 40, 8):
                got[number] = await ask(provider, asked[number])

        for first in range(8):
            nursery.start_soon(some, first)
    assert all(asked[number].messages[0].text in got[number] for number in range(40))


async def test_a_disk_that_takes_no_more_ends_the_recording_and_not_the_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    async with opened(tmp_path / "file" / "a.jsonl", "record") as provider:
        assert "hello" in await ask(provider, question("hello"))
        assert "again" in await ask(provider, question("again"))
    assert caplog.text.count("no more answers are recorded") == 1


async def test_errors_of_the_provider_pass_and_are_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    async with opened(path, "record") as provider:
        with pytest.raises(Rejected):
            await provider.embed(replace(question("x"), embed=True, dimensions=1 << 20), lambda _: None)
        vectors = (await provider.embed(replace(question("x"), embed=True), lambda _: None)).vectors
    async with opened(path) as provider:
        again = (await provider.embed(replace(question("x"), embed=True), lambda _: None)).vectors
    assert list(again) == list(vectors)


async def test_a_file_that_can_not_be_used_is_told_at_the_first_question(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(Denied, match=r"cassette: .*a.jsonl: line 1: no JSON"):
        await Cassette.read(tmp_path / "a.jsonl", "replay").connect(lambda: pytest.fail("not asked"))
