"""Answers that are kept for equal questions: whose they are, how long, how much memory, and what isn't kept."""

import pytest
from attrs import evolve
from msgspec.structs import replace
from trio.testing import MockClock

from agentos.llm.answers import response_cache as module
from agentos.llm.answers.response_cache import ResponseCache, hash_question
from agentos.llm.answers.sampling import Sampling
from agentos.llm.providers.provider import Answer, FinishReason, Image, Message, Question, Rejected
from agentos.llm.queue.request import ThinkResult
from agentos.llm.settings import LLMSettings
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import CallError
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.llm.scripted import Scripted, question
from tests.llm.test_line import open_line, queue_path

HOUR = LLMSettings(cache=3600.0)


def answered(text: str = "yes", finish_reason: FinishReason = "stop") -> ThinkResult:
    return ThinkResult(Answer(text, Usage(3, 4, 5), finish_reason, "gpt"), 1.0, 2.0)


async def test_an_equal_question_is_answered_without_the_model_and_costs_nothing(autojump_clock: MockClock) -> None:
    asked, pieces = Scripted(), list[str]()
    async with open_line(asked, HOUR) as line:
        first = await line.think(queue_path("writer"), question("2 + 2?"))
        second = await line.think(queue_path("writer"), question("2 + 2?"), pieces.append)

        assert len(asked.asked) == 1
        assert (first.cached, second.cached) == (False, True)
        assert second.answer == evolve(first.answer, usage=Usage())
        assert (second.queued, second.latency) == (0.0, 0.0)
        assert pieces == [first.answer.text]
        assert line.usage_of(queue_path("writer")).calls == 1


async def test_another_agent_asks_the_model_itself_unless_answers_are_shared(autojump_clock: MockClock) -> None:
    for shared, sent in ((False, 2), (True, 1)):
        asked = Scripted()
        async with open_line(asked, replace(HOUR, cache_shared=shared)) as line:
            for name in ("writer", "reader"):
                await line.think(queue_path(name), question("2 + 2?"))
        assert len(asked.asked) == sent


async def test_nothing_is_kept_unless_it_is_configured(autojump_clock: MockClock) -> None:
    asked = Scripted()
    async with open_line(asked, LLMSettings()) as line:
        for _ in range(2):
            assert not (await line.think(queue_path("writer"), question("2 + 2?"))).cached
    assert len(asked.asked) == 2


async def test_a_failure_is_not_kept(autojump_clock: MockClock) -> None:
    asked = Scripted([[Rejected("too long")], ["yes"]])
    async with open_line(asked, HOUR) as line:
        with pytest.raises(CallError):
            await line.think(queue_path("writer"), question("2 + 2?"))
        assert not (await line.think(queue_path("writer"), question("2 + 2?"))).cached


async def test_an_answer_is_forgotten_after_its_lifetime_and_with_its_agent(autojump_clock: MockClock) -> None:
    cache, key = ResponseCache(10.0), hash_question(Question("gpt", [Message("user", "2 + 2?")]), ["gpt"])
    assert key is not None
    cache.put("writer", key, answered())
    autojump_clock.jump(9.9)
    assert cache.get("writer", key) is not None
    autojump_clock.jump(0.2)
    assert cache.get("writer", key) is None

    cache.put("writer", key, answered())
    cache.remove_agent("writer")
    assert cache.get("writer", key) is None


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_incomplete_answer_is_not_kept(reason: FinishReason) -> None:
    cache, key = ResponseCache(10.0), b"key"
    cache.put("writer", key, answered(finish_reason=reason))
    assert cache.get("writer", key) is None


async def test_a_question_differs_by_all_that_is_sent() -> None:
    plain = Question("gpt", [Message("user", "2 + 2?")])
    others = [
        replace(plain, model="gemini"),
        replace(plain, messages=[Message("user", "2 + 3?")]),
        replace(plain, messages=[Message("assistant", "2 + 2?")]),
        replace(plain, messages=[Message("user", "2 + 2?", [Image(b"dog", "image/png")])]),
        replace(plain, messages=[Message("user", "2 + 2?", [Image(b"cat", "image/png")])]),
        replace(plain, messages=[Message("assistant", "", (), [ToolCall("1", "add", {"a": 2})])]),
        replace(plain, system="Be brief."),
        replace(plain, temperature=0.5),
        replace(plain, max_tokens=5),
        replace(plain, thinking_level="high"),
        replace(plain, tools=[Tool(Text("add"), Text("adds"), {"type": "object"})]),
        replace(plain, tools=[Tool(Text("add"), Text("adds"), {"type": "object"})], tool_choice="required"),
        replace(plain, stop=["4"]),
        replace(plain, response_schema={"type": "integer"}),
        replace(plain, sampling=Sampling(seed=1)),
    ]
    hashes = {hash_question(each, ["gpt"]) for each in (plain, *others)} | {hash_question(plain, ["gpt", "gemini"])}
    assert len(hashes) == 2 + len(others)
    assert hash_question(plain, ["gpt"]) == hash_question(Question("gpt", [Message("user", "2 + 2?")]), ["gpt"])


async def test_a_full_cache_drops_the_oldest_of_the_agent_with_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 10 * module.ENTRY_BYTES)
    cache = ResponseCache(10.0)
    cache.put("quiet", b"its only one", answered(""))
    for number in range(100):
        cache.put("flooder", bytes([number]), answered(""))

    assert cache.get("quiet", b"its only one") is not None
    assert [number for number in range(100) if cache.get("flooder", bytes([number]))] == list(range(91, 100))


async def test_an_answer_that_replaces_another_takes_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 10 * module.ENTRY_BYTES)
    cache = ResponseCache(10.0)
    cache.put("writer", b"other", answered(""))
    for _ in range(100):  # equal questions that were asked at once
        cache.put("writer", b"same", answered(""))

    assert cache.get("writer", b"other") is not None


@pytest.mark.parametrize("of", ["text", "logprobs", "arguments"])
async def test_an_answer_of_more_than_a_mebibyte_is_not_kept(of: str) -> None:
    most, small, cache = module.MAX_ANSWER_BYTES, answered(), ResponseCache(10.0)
    large = {
        "text": evolve(small.answer, text="x" * most),
        "logprobs": evolve(small.answer, logprobs=b"x" * most),
        "arguments": evolve(small.answer, calls=[ToolCall("1", "add", {"text": "x" * most})]),
    }
    cache.put("writer", b"key", replace(small, answer=large[of]))
    assert cache.get("writer", b"key") is None


async def test_numbers_of_any_size_can_be_asked_and_answered(autojump_clock: MockClock) -> None:
    call = ToolCall("1", "add", {"number": 10**30})
    asked = Scripted()
    async with open_line(asked, HOUR) as line:
        for _ in range(2):
            with_call = replace(question(), messages=[Message("assistant", calls=[call]), Message("user", "and?")])
            assert not (await line.think(queue_path("writer"), with_call)).cached

    cache = ResponseCache(10.0)
    cache.put("writer", b"key", ThinkResult(evolve(answered().answer, calls=[call]), 1.0, 2.0))
    assert cache.get("writer", b"key") is not None
