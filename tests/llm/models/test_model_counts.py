import pytest
from trio.testing import MockClock

from agentos.llm.models.counts import MAX_MODELS, MAX_NAMES, ModelCounts, ModelUse
from agentos.llm.providers.provider import Failing, Rejected
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import Usage
from tests.llm.scripted import Scripted, Step, question
from tests.llm.test_line import crowd, open_line, queue_path, work


async def test_calls_are_counted_with_their_tokens_and_times(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(3.0)])) as line:
        async with crowd(line) as all_of_them:
            for name in ("a", "b"):
                await all_of_them.ask(queue_path("kernel", name))

        assert line.counts.of("a") == {"scripted": ModelUse(1, 10, 4, 0, 0, 3.0, 0.0, questions=1)}
        assert line.counts.of("b") == {"scripted": ModelUse(1, 10, 4, 0, 0, 3.0, 3.0, questions=1)}
        await line.think(queue_path("kernel", "a"), question())
        assert line.counts.of("a")["scripted"].calls == 2


def test_callers_of_one_kind_that_are_no_agents_are_counted_together() -> None:
    counts = ModelCounts()
    for name in ("operator#1", "operator#2", "guest ada", "guest#3"):
        counts.add_use(name, "m", 1, Usage(10, cache_read=6, cache_creation=3), 5)

    together = ModelUse(2, 20, cost=10, cache_read=12, cache_creation=6)
    assert counts.of("operator") == counts.of("guest") == {"m": together}


def test_neither_names_nor_models_take_memory_without_bound() -> None:
    counts = ModelCounts()
    for number in range(MAX_MODELS + 5):
        counts.add_use("one", f"m{number}", 1, Usage(), None)
    assert len(counts.of("one")) == MAX_MODELS + 1
    assert counts.of("one")["other"].calls == 5

    for number in range(MAX_NAMES):
        counts.add_end(f"a{number}", "m", (1.0, 0.0), failed=False, retried=False)
    assert counts.of("one") == {}
    assert counts.of("a0")["m"].seconds == 1.0


def test_the_last_hour_has_each_guest_and_forgets_what_is_older() -> None:
    now = [0.0]
    counts = ModelCounts(clock=lambda: now[0])
    for now[0], name in ((0.0, "guest ada"), (100.0, "guest bob"), (299.0, "operator#3"), (3500.0, "a")):
        counts.add_use(name, "m", 1, Usage(10, 2), 5)
        counts.add_end(name, "m", (1.0, 2.0), failed=name == "a", retried=name == "guest bob")

    now[0] = 3599.0
    found = counts.last_hour()
    assert set(found) == {(name, "m") for name in ("guest ada", "guest bob", "operator", "a")}
    assert found["guest bob", "m"] == ModelUse(1, 10, 2, 0, 5, 1.0, 2.0, questions=1, retried=1)
    assert found["a", "m"].failed == 1
    now[0] = 3600.0
    counts.add_use("a", "m", 1, Usage(10, 2), 5)
    assert set(counts.last_hour()) == {("a", "m")}
    assert counts.last_hour()["a", "m"].calls == 2
    now[0] = 1e6
    assert counts.last_hour() == {}
    assert counts.of("a")["m"].calls == 2


def test_the_last_hour_takes_no_memory_without_bound() -> None:
    counts = ModelCounts(clock=lambda: 0.0)
    for number in range(MAX_NAMES + 5):
        counts.add_use(f"a{number}", "m", 1, Usage(), None)

    found = counts.last_hour()
    assert len(found) == MAX_NAMES + 1
    assert found["other", "other"].calls == 5


async def test_a_question_without_an_answer_has_failed_and_one_that_was_sent_again_was_retried(
    autojump_clock: MockClock,
) -> None:
    script: list[list[Step]] = [["yes"], [Failing("500")], ["yes"], [Rejected("400")]]
    async with open_line(Scripted(script)) as line:
        for _ in range(2):
            await line.think(queue_path("kernel", "a"), question())
        with pytest.raises(BadRequest):
            await line.think(queue_path("kernel", "a"), question())

        use = line.counts.last_hour()["a", "scripted"]
        assert (use.questions, use.failed, use.retried) == (3, 1, 1)
