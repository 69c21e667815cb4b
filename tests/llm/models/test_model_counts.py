from trio.testing import MockClock

from agentos.llm.models.counts import MAX_MODELS, MAX_NAMES, ModelCounts, ModelUse
from agentos_sdk.values import Usage
from tests.llm.scripted import Scripted, question
from tests.llm.test_line import crowd, open_line, queue_path, work


async def test_calls_are_counted_with_their_tokens_and_times(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(3.0)])) as line:
        async with crowd(line) as all_of_them:
            for name in ("a", "b"):
                await all_of_them.ask(queue_path("kernel", name))

        assert line.counts.of("a") == {"scripted": ModelUse(1, 10, 4, 0, 0, 3.0, 0.0)}
        assert line.counts.of("b") == {"scripted": ModelUse(1, 10, 4, 0, 0, 3.0, 3.0)}
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
        counts.add_time(f"a{number}", "m", 1.0, 0.0)
    assert counts.of("one") == {}
    assert counts.of("a0")["m"].seconds == 1.0
