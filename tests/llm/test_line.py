import contextlib
import gc
import itertools
import math
import sqlite3
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.database import Database, open_database
from agentos.llm import budgets
from agentos.llm.ask import ProviderClient
from agentos.llm.budgets import Budgets
from agentos.llm.line import Line
from agentos.llm.memory import MAX_FAMILY_BYTES
from agentos.llm.providers.provider import (
    Answer,
    Delta,
    Failing,
    OnDelta,
    Provider,
    Question,
    RateLimited,
    Rejected,
)
from agentos.llm.queue.claims import ENVELOPE_BYTES
from agentos.llm.queue.fair_queue import QueueFull
from agentos.llm.queue.states import QueueState
from agentos.llm.settings import DEFAULT_BUDGET, Account, LLMSettings, QueuePath, Retry, Share
from agentos.services.quotas import Quotas, make_quotas
from agentos_sdk.errors import BadRequest, Busy, Internal, QuotaExceeded, Unavailable
from agentos_sdk.values import InLine, LLMClass, Usage
from tests.llm.scripted import Scripted, Step, question
from tests.support.wire import PATIENCE

SETTINGS = LLMSettings()


def queue_path(*names: str, weight: float = 1.0) -> QueuePath:
    return (*(Account(name) for name in names[:-1]), Account(names[-1], Share(weight)))


def work(seconds: float) -> list[Step]:
    return [seconds, "done"]


def unwritten() -> Budgets:
    """Budgets of those who have none, which write nothing."""
    return Budgets(Quotas(), {}, Database(Path("nowhere")), 100)


@asynccontextmanager
async def open_line(
    provider: Scripted, settings: LLMSettings = SETTINGS, accounts: Budgets | None = None
) -> AsyncIterator[Line]:
    async def connect() -> Provider:
        return provider

    line = Line(
        settings, ProviderClient(connect, settings.retry, settings.timeouts), accounts or unwritten(), "scripted"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.serve)
        yield line
        nursery.cancel_scope.cancel()


@define
class Crowd:
    """Many who ask; ``answered`` in the order of their answers."""

    line: Line
    nursery: trio.Nursery
    answered: list[str]

    async def ask(
        self, who: QueuePath, text: str = "why?", model: str = "scripted", class_: LLMClass | None = None
    ) -> None:
        """Begin to; it waits in the line, or is in flight, on return."""

        async def one() -> None:
            await self.line.think(who, replace(question(text), model=model), class_=class_)
            self.answered.append(who[-1].name)

        self.nursery.start_soon(one)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def crowd(line: Line) -> AsyncIterator[Crowd]:
    async with trio.open_nursery() as nursery:
        yield Crowd(line, nursery, [])


async def test_an_answer_says_how_long_it_waited_and_how_long_it_took(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(3.0)])) as line, trio.open_nursery() as nursery:
        nursery.start_soon(line.think, queue_path("a"), question())
        await wait_all_tasks_blocked()

        thought = await line.think(queue_path("b"), question())

        assert (thought.answer.text, thought.queued, thought.latency) == ("done", 3.0, 3.0)


async def test_one_question_is_in_flight_at_a_time(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)])

    async with open_line(provider) as line, crowd(line) as all_of_them:
        for name in "abc":
            await all_of_them.ask(queue_path(name))

    assert [at - provider.begun[0] for at in provider.begun] == [0.0, 1.0, 2.0]


async def test_concurrency_lets_more_of_them_be_in_flight(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)])

    async with open_line(provider, LLMSettings(concurrency=2)) as line, crowd(line) as all_of_them:
        for name in "abc":
            await all_of_them.ask(queue_path(name))

    assert [at - provider.begun[0] for at in provider.begun] == [0.0, 0.0, 1.0]


async def test_a_single_request_does_not_wait_behind_a_flood(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line:
        async with crowd(line) as all_of_them:
            for _ in range(20):
                await all_of_them.ask(queue_path("flood"))
            await all_of_them.ask(queue_path("light"))

        assert all_of_them.answered.index("light") == 1


async def test_an_agent_that_spawns_many_has_no_more_of_the_model_than_before(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line:
        async with crowd(line) as all_of_them:
            for number in range(8):
                await all_of_them.ask(queue_path("many", f"many/{number}"))
            for _ in range(4):
                await all_of_them.ask(queue_path("alone"))

        assert all_of_them.answered[:8].count("alone") == 4


async def test_a_weight_is_a_share(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line:
        async with crowd(line) as all_of_them:
            for _ in range(12):
                await all_of_them.ask(queue_path("heavy", weight=3.0))
                await all_of_them.ask(queue_path("light"))

        assert all_of_them.answered[:12].count("heavy") == pytest.approx(9, abs=1)


async def test_a_request_cancelled_while_it_waits_leaves_the_line_at_once(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)])

    async with open_line(provider) as line, crowd(line) as all_of_them:
        await all_of_them.ask(queue_path("first"), "one")
        with trio.move_on_after(0.5):
            await line.think(queue_path("b"), question("never"))

        assert line.depth == 0

    assert provider.asked == ["one"]


async def test_a_request_cancelled_in_flight_is_aborted_at_once_and_the_next_one_goes(
    autojump_clock: MockClock,
) -> None:
    provider = Scripted([[math.inf], ["yes"]])

    async with open_line(provider) as line:
        began = trio.current_time()
        with trio.move_on_after(0.5):
            await line.think(queue_path("a"), question())
        await line.think(queue_path("b"), question())

        assert provider.aborted == [began + 0.5]
        assert provider.begun[1] == began + 0.5


async def test_the_queue_states_tell_the_waiting_requests_and_the_order_of_turns(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for name in ("a", "b", "c", "b"):
            await all_of_them.ask(queue_path(name))

        assert line.queue_states() == {
            ("a",): QueueState(InLine(0, 1, None)),
            ("b",): QueueState(InLine(2, 0, 1)),
            ("c",): QueueState(InLine(1, 0, 2)),
        }
        assert (line.depth, line.in_flight) == (3, 1)


async def test_a_full_line_refuses_and_keeps_what_it_has(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)]), LLMSettings(per_agent=2)) as line:
        async with crowd(line) as all_of_them:
            for _ in range(3):
                await all_of_them.ask(queue_path("a"))
            with pytest.raises(QueueFull):
                await line.think(queue_path("a"), question())

        assert all_of_them.answered == ["a"] * 3


async def test_one_that_fails_fails_alone(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([[Rejected("400")], [ZeroDivisionError()], ["yes"]])) as line:
        with pytest.raises(BadRequest):
            await line.think(queue_path("a"), question())
        with pytest.raises(Internal):
            await line.think(queue_path("a"), question())

        assert (await line.think(queue_path("a"), question())).answer.text == "yes"


async def test_an_agent_that_is_always_turned_away_is_not_always_next(autojump_clock: MockClock) -> None:
    provider = Scripted([[0.5, Rejected("400")]])

    async with open_line(provider) as line, trio.open_nursery() as nursery:

        async def insist(name: str) -> None:
            for _ in range(10):
                with pytest.raises(BadRequest):
                    await line.think(queue_path(name), question(name))

        nursery.start_soon(insist, "a")
        nursery.start_soon(insist, "b")

    assert {provider.asked[turn] for turn in (8, 9)} == {"a", "b"}


async def test_while_a_question_waits_to_be_asked_again_others_are_asked(autojump_clock: MockClock) -> None:
    provider = Scripted([[1.0, Failing("500")], work(1.0)])

    async with open_line(provider, LLMSettings(retry=Retry(first=5.0, jitter=0.0))) as line:
        async with crowd(line) as all_of_them:
            await all_of_them.ask(queue_path("unlucky"), "one")
            await all_of_them.ask(queue_path("other"), "two")

        assert all_of_them.answered == ["other", "unlucky"]
        assert provider.asked == ["one", "two", "one"]
        assert (line.depth, line.in_flight) == (0, 0)


async def test_a_request_that_leaves_in_the_pause_between_two_attempts_takes_no_place_along(
    autojump_clock: MockClock,
) -> None:
    async with open_line(Scripted([[Failing("500")], ["yes"]]), LLMSettings(retry=Retry(first=5.0))) as line:
        with trio.move_on_after(1.0):
            await line.think(queue_path("a"), question())

        for _ in range(3):
            assert (await line.think(queue_path("b"), question())).answer.text == "yes"


async def test_an_agent_that_holds_the_model_in_silence_and_leaves_pays_for_the_time(autojump_clock: MockClock) -> None:
    provider = Scripted([[10.0, "yes"]])

    async with open_line(provider) as line, trio.open_nursery() as nursery:

        async def waste() -> None:
            while True:
                with trio.move_on_after(9.9):
                    await line.think(queue_path("waster"), question("x"))

        for _ in range(5):
            nursery.start_soon(waste)
        await trio.sleep(1)
        began = trio.current_time()
        await line.think(queue_path("light"), question("x" * 4000))  # a thousand tokens
        nursery.cancel_scope.cancel()

        assert trio.current_time() - began < 60.0


async def test_pieces_of_an_answer_are_heard_as_they_come(autojump_clock: MockClock) -> None:
    heard: list[tuple[str, float]] = []

    async with open_line(Scripted([["one ", 1.0, "two ", 1.0, "three"]])) as line:
        began = trio.current_time()
        thought = await line.think(
            queue_path("a"), question(), lambda text: heard.append((text, trio.current_time() - began))
        )

    assert heard == [("one ", 0.0), ("two ", 1.0), ("three", 2.0)]
    assert thought.answer.text == "one two three"


async def test_an_agent_with_nothing_left_is_refused_before_it_waits(tmp_path: Path) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, calls=1))),)

    async with with_budgets(tmp_path) as accounts, open_line(Scripted([["yes"]]), accounts=accounts) as line:
        await line.think(poor, question())
        with pytest.raises(QuotaExceeded, match="poor"):
            await line.think(poor, question())

        assert (await line.think(queue_path("other"), question())).answer.text == "yes"


@define(eq=False)
class Together(Scripted):
    """Answers no question until ``number`` are under way."""

    number: int = 1
    all_asked: trio.Event = field(factory=trio.Event)

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        self.number -= 1
        if not self.number:
            self.all_asked.set()
        await self.all_asked.wait()
        return await Scripted.answer(self, question, on_delta)


async def test_six_questions_of_32_000_at_once_go_through_under_the_default_budget(tmp_path: Path) -> None:
    agent: QueuePath = (Account("agent", Share(budget=DEFAULT_BUDGET, by_default=True)),)
    provider = Together(number=6)

    async with with_budgets(tmp_path) as accounts, open_line(provider, LLMSettings(concurrency=6), accounts) as line:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(line.think, agent, question("x" * 2000, max_tokens=32_000))

    assert provider.most == [32_000] * 6


async def test_questions_that_may_overrun_a_small_budget_are_asked_one_after_the_other(tmp_path: Path) -> None:
    small: QueuePath = (Account("small", Share(budget=make_quotas(3600, tokens=9000))),)
    provider = Scripted([[0.01, "x" * 1000]])
    under_way: list[int] = []

    async with with_budgets(tmp_path) as accounts, open_line(provider, LLMSettings(concurrency=6), accounts) as line:
        line.on_use = lambda *_: under_way.append(len(provider.asked))
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(line.think, small, question(max_tokens=32_000))

        assert provider.most == [32_000] * 6
        assert under_way == [1, 2, 3, 4, 5, 6], "each was asked when the one before was answered"
        assert [each.settled for each in line.budget_states(small)] == [6 * 1010]


async def test_what_an_answer_used_beyond_its_reservation_is_on_disk_before_it_is_given(tmp_path: Path) -> None:
    small: QueuePath = (Account("small", Share(budget=make_quotas(3600, tokens=3000))),)
    provider = Scripted(usage=lambda text: Usage(10, 20_000))

    async with with_budgets(tmp_path) as accounts, open_line(provider, accounts=accounts) as line:
        await line.think(small, question(max_tokens=32_000))

        with contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection:
            assert connection.execute("SELECT settled, reserved FROM quotas").fetchall() == [(20_010, 0)]
        with pytest.raises(QuotaExceeded, match="of which 20010 used"):
            await line.think(small, question(max_tokens=1))


async def test_an_aborted_question_costs_what_it_used(tmp_path: Path) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, tokens=1000))),)
    provider = Scripted([["12345678", Delta(usage=Usage(70, 30)), math.inf]])

    async with with_budgets(tmp_path) as accounts, open_line(provider, accounts=accounts) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.think, poor, question())
            while not provider.asked:
                await trio.sleep(0.001)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()

        [standing] = line.budget_states(poor)
        assert (standing.settled, standing.reserved) == (100, 0)


async def test_a_question_that_no_model_has_seen_costs_nothing(tmp_path: Path) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, calls=5, tokens=1000))),)
    provider = Scripted([[Failing("connection refused")]])
    settings = LLMSettings(retry=Retry(attempts=1))

    async with with_budgets(tmp_path) as accounts, open_line(provider, settings, accounts) as line:
        with pytest.raises(Exception, match="connection refused"):
            await line.think(poor, question())

        assert {each.quota.what: each.settled for each in line.budget_states(poor)} == {"tokens": 0, "calls": 0}


@asynccontextmanager
async def with_budgets(directory: Path) -> AsyncIterator[Budgets]:
    async with open_database(directory / "db", {"quotas": budgets.TABLES}) as database:
        yield await Budgets.load({}, database, 100, 0.0)


async def test_the_provider_s_connections_are_closed_at_the_end(autojump_clock: MockClock) -> None:
    provider = Scripted()

    async with open_line(provider) as line:
        await line.think(queue_path("a"), question())

    assert provider.closed


async def test_agents_that_always_have_something_to_ask_get_the_same(autojump_clock: MockClock) -> None:
    """Eight agents with questions of different lengths, for five simulated minutes."""
    async with open_line(Scripted([work(0.1)], usage=lambda text: Usage(10, 10))) as line:

        async def insist(number: int) -> None:
            while True:
                await line.think(queue_path(str(number)), question("x" * 40 * (number + 1)))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(insist, number)  # two of each, so that one always waits
                nursery.start_soon(insist, number)
            for _ in range(10):
                await trio.sleep(30)
                found = line.fairness()
            nursery.cancel_scope.cancel()

    assert found > 0.99


async def test_a_request_that_lacks_only_what_others_have_reserved_waits_until_that_is_settled(tmp_path: Path) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, tokens=104))),)
    provider = Scripted([[0.1, "yes"]])

    async with with_budgets(tmp_path) as accounts, open_line(provider, LLMSettings(concurrency=2), accounts) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.think, poor, question(max_tokens=60))
            nursery.start_soon(line.think, poor, question(max_tokens=60))

        assert provider.most == [60, 60]
        assert provider.begun[1] >= provider.begun[0] + 0.1


@pytest.mark.parametrize("model", ["x:gen#", "a/../b", "%2e%2e/files", "a b", "a?b", "x" * 300])
async def test_a_model_s_name_is_no_way_into_a_url(model: str, autojump_clock: MockClock) -> None:
    provider = Scripted()

    async with open_line(provider) as line:
        with pytest.raises(BadRequest, match="model: expected a name"):
            await line.think(queue_path("a"), replace(question(), model=model))

    assert provider.asked == []


async def test_what_waits_for_the_model_has_an_end_in_bytes(autojump_clock: MockClock) -> None:
    book = "x" * (MAX_FAMILY_BYTES // 2)

    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for _ in range(2):
            await all_of_them.ask(queue_path("kernel", "writer", "writer/child"), book[: MAX_FAMILY_BYTES // 2 - 1000])
        with pytest.raises(Busy, match="already queued"):
            await line.think(queue_path("kernel", "writer"), question(book))

        assert (await line.think(queue_path("kernel", "other"), question(book))).answer.text == "done"


async def test_questions_that_come_back_from_a_pause_wait_for_their_turn(autojump_clock: MockClock) -> None:
    provider = Scripted([[1.0, Failing("500")]])
    settings = LLMSettings(retry=Retry(attempts=2, first=30.0, jitter=0.0))

    async with open_line(provider, settings) as line, trio.open_nursery() as nursery:

        async def insist() -> None:
            with contextlib.suppress(Unavailable):
                await line.think(queue_path("flood"), question("flood"))

        for _ in range(25):
            nursery.start_soon(insist)
        await trio.sleep(30.5)  # now many have stepped aside, and come back one after the other
        began = len(provider.asked)
        with pytest.raises(Unavailable):
            await line.think(queue_path("light"), question("light"))

        assert provider.asked[began:].index("light") <= 1


async def test_a_request_that_waits_for_its_next_attempt_keeps_no_reservation_from_others(tmp_path: Path) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, tokens=104))),)
    provider = Scripted([[Failing("500")], ["yes"]])
    settings = LLMSettings(retry=Retry(first=0.2, jitter=0.0))

    async with with_budgets(tmp_path) as accounts, open_line(provider, settings, accounts) as line:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.think, poor, question("one", max_tokens=60))
                nursery.start_soon(line.think, poor, question("two", max_tokens=60))

    assert provider.asked in (["one", "two", "one"], ["two", "one", "two"])


async def test_a_question_that_is_over_is_gone_from_memory(autojump_clock: MockClock) -> None:
    gc.disable()
    try:
        async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
            seen = []
            for name in ("answered", "aborted", "withdrawn"):
                asked = question(name)
                seen.append(weakref.ref(asked))
                with trio.move_on_after(math.inf if name == "answered" else 0.5):
                    if name == "withdrawn":
                        await all_of_them.ask(queue_path("other"))
                    await line.think(queue_path(name), asked)
                del asked
            await trio.sleep(5)

            assert [reference() for reference in seen] == [None] * 3
    finally:
        gc.enable()


LIMITED: list[Step] = [0.02, RateLimited("429", 3.0)]


async def answers_beside(attack: bool) -> Counter[str]:
    """What four agents get in 30 s, each with one question after the other, beside one whose model answers 429."""
    provider = Scripted([work(0.5)], models={"limited": LIMITED})
    answered: Counter[str] = Counter()

    async with open_line(provider) as line, trio.open_nursery() as nursery:

        async def insist(name: str, model: str) -> None:
            while True:
                with contextlib.suppress(Unavailable):
                    await line.think(queue_path(name), replace(question(), model=model))
                    answered[name] += 1

        for number in range(4):
            nursery.start_soon(insist, str(number), "scripted")
        for _ in range(8 if attack else 0):
            nursery.start_soon(insist, "attacker", "limited")
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    return answered


async def test_the_429_of_one_model_leaves_the_answers_of_others_as_they_were(autojump_clock: MockClock) -> None:
    alone, beside = await answers_beside(attack=False), await answers_beside(attack=True)

    assert alone.total() >= 58
    assert beside.total() >= 0.9 * alone.total()
    assert max(beside.values()) - min(beside.values()) <= 1


async def test_a_question_for_a_paused_model_waits_in_no_place_of_the_providers(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)], models={"limited": [RateLimited("429", 9.0)]})

    async with open_line(provider) as line, crowd(line) as all_of_them:
        for number in range(3):
            await all_of_them.ask(queue_path("a"), str(number), "limited")
        await all_of_them.ask(queue_path("b"))

        queued = line.queue_states()["a",]
        assert queued.place == InLine(3, 0, None, 3)
        assert [(state.model, state.state, state.reason) for state in queued.models] == [("limited", "paused", "429")]
        assert [(state.model, state.state) for state in line.model_states()] == [
            ("scripted", "ready"),
            ("limited", "paused"),
        ]
        assert (line.in_flight, line.depth) == (1, 3)
        assert line.queue_states()["b",] == QueueState(InLine(0, 1, None))
        all_of_them.nursery.cancel_scope.cancel()


async def test_when_a_pause_ends_its_questions_are_asked_in_their_order(autojump_clock: MockClock) -> None:
    provider = Scripted([[RateLimited("429", 9.0)], ["yes"]])

    async with open_line(provider, LLMSettings(retry=Retry(jitter=0.0))) as line, crowd(line) as all_of_them:
        for number in range(3):
            await all_of_them.ask(queue_path("a"), str(number))

    assert provider.asked[0] == "0"
    assert sorted(provider.asked[1:]) == ["0", "1", "2"]
    assert [at - provider.begun[0] for at in provider.begun] == [0.0, 9.0, 9.0, 9.0]


async def test_the_deadline_of_a_question_runs_while_its_model_is_paused(autojump_clock: MockClock) -> None:
    provider = Scripted([[RateLimited("429", 9.0)]])

    async with open_line(provider, LLMSettings(retry=Retry(jitter=0.0))) as line, trio.open_nursery() as nursery:
        nursery.start_soon(line.think, queue_path("a"), question())
        await wait_all_tasks_blocked()
        with trio.move_on_after(9.5) as patience:  # longer than this pause, not than the next one
            with pytest.raises(Unavailable, match="after the call's deadline"):
                await line.think(queue_path("b"), question())
        nursery.cancel_scope.cancel()

        assert not patience.cancelled_caught


async def test_a_request_that_leaves_while_its_model_is_paused_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    provider = Scripted([["yes"]], models={"limited": [RateLimited("429", 9.0)]})

    async with open_line(provider) as line:
        async with crowd(line) as all_of_them:
            for name in "aab":
                await all_of_them.ask(queue_path(name), model="limited")
            all_of_them.nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()

        assert (line.depth, line.in_flight, dict(line.queue_states())) == (0, 0, {})


async def test_a_pause_that_is_too_long_ends_the_questions_that_wait_at_once(autojump_clock: MockClock) -> None:
    provider = Scripted([[1.0, RateLimited("429", 3600.0)]])

    async with open_line(provider) as line, trio.open_nursery() as nursery:
        began, ended = trio.current_time(), list[float]()

        async def ask(name: str) -> None:
            with pytest.raises(Unavailable, match=r"until .* UTC"):
                await line.think(queue_path(name), question())
            ended.append(trio.current_time() - began)

        for name in "aab":
            nursery.start_soon(ask, name)
        await trio.sleep(2)
        await ask("late")

    assert (ended, len(provider.asked)) == ([1.0, 1.0, 1.0, 2.0], 1)


async def test_every_refused_attempt_costs_its_asker_its_turn(autojump_clock: MockClock) -> None:
    """An agent that invents a model for each question meets no pause; it is asked no more often than another."""
    provider = Scripted([[0.01, RateLimited("429", 3600.0)]], models={"scripted": [0.01, "yes"]})

    async with open_line(provider) as line, trio.open_nursery() as nursery:

        async def insist(name: str, models: Iterator[str]) -> None:
            for model in models:
                with contextlib.suppress(Unavailable):
                    await line.think(queue_path(name), replace(question(name * 100), model=model))

        invented = (f"invented-{number}" for number in itertools.count())
        for _ in range(3):
            nursery.start_soon(insist, "a", invented)
            nursery.start_soon(insist, "b", itertools.repeat("scripted"))
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    asked = Counter(text[0] for text in provider.asked)
    assert asked.total() > 900
    assert asked["b"] >= 0.3 * asked["a"]  # whose answers cost it their output besides


async def test_what_a_provider_refused_is_charged_to_no_budget_and_reserves_nothing(tmp_path: Path) -> None:
    shared = Account("kernel", Share(budget=make_quotas(3600, tokens=1000, calls=5)))
    provider = Scripted([["yes"]], usage=lambda text: Usage(5, 5), models={"limited": [RateLimited("429", 60.0)]})

    async with (
        with_budgets(tmp_path) as accounts,
        open_line(provider, accounts=accounts) as line,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(line.think, (shared, Account("a")), replace(question(), model="limited"))
        while not line.queue_states().get(("kernel", "a"), QueueState()).place.paused:
            await trio.sleep(0.001)

        assert {(each.settled, each.reserved) for each in line.budget_states((shared,))} == {(0, 0)}
        assert (await line.think((shared, Account("b")), question())).answer.text == "yes"
        assert {each.quota.what: each.settled for each in line.budget_states((shared,))} == {"tokens": 10, "calls": 1}
        nursery.cancel_scope.cancel()


async def test_while_one_question_tries_whether_a_model_is_back_others_take_no_place(autojump_clock: MockClock) -> None:
    provider = Scripted([[Failing("500")], [5.0, "back"]], models={"other": ["yes"]})
    settings = LLMSettings(concurrency=2, retry=Retry(attempts=1, breaker=1, cooldown=10.0))

    async with open_line(provider, settings) as line, crowd(line) as all_of_them:
        with pytest.raises(Unavailable):
            await line.think(queue_path("a"), question())
        await trio.sleep(10)
        for name in "bcd":
            await all_of_them.ask(queue_path(name))

        assert (line.in_flight, line.depth) == (1, 2)
        assert [state.state for state in line.model_states()] == ["down"]
        assert (await line.think(queue_path("e"), replace(question(), model="other"))).answer.text == "yes"

    assert len(all_of_them.answered) == 3


async def test_a_claim_of_hardly_any_tokens_is_not_believed(tmp_path: Path) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, tokens=10_000))),)
    provider = Scripted([["yes"]], usage=lambda text: Usage(1, 1))

    async with with_budgets(tmp_path) as accounts, open_line(provider, accounts=accounts) as line:
        thought = await line.think(poor, question("x" * 16_000))

        [standing] = line.budget_states(poor)
        assert 1000 <= standing.settled == thought.answer.usage.total < 1010
        assert thought.bound == f"claimed 2 tokens, charged {standing.settled} (at least)"


@pytest.mark.parametrize("where", ["at the end", "in the middle"])
async def test_a_claim_of_a_billion_tokens_uses_no_budget_up(tmp_path: Path, where: str) -> None:
    poor: QueuePath = (Account("poor", Share(budget=make_quotas(3600, tokens=10_000))),)
    claim = Usage(9 * 10**8, 1)
    provider = Scripted([["yes"]], usage=lambda text: claim)
    if where == "in the middle":
        provider = Scripted([[Delta("yes", usage=claim), Failing("broke off")], ["yes"]])
    settings = LLMSettings(retry=Retry(attempts=1))

    async with with_budgets(tmp_path) as accounts, open_line(provider, settings, accounts) as line:
        with contextlib.suppress(Unavailable):
            await line.think(poor, question("x" * 100, max_tokens=50))

        [standing] = line.budget_states(poor)
        assert 100 <= standing.settled <= 100 + 2 * ENVELOPE_BYTES + 50 + 3
        assert (await line.think(queue_path("other"), question())).answer.usage.total < 10**6
