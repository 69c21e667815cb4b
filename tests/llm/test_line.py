import contextlib
import gc
import math
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.database import Database, open_database
from agentos.llm import budgets
from agentos.llm.asking import Asking
from agentos.llm.budgets import Budgets
from agentos.llm.fair_queue import Full
from agentos.llm.line import HELD_BY_ONE, Line, Place
from agentos.llm.provider import Delta, Failing, Provider, Rejected, Usage
from agentos.llm.settings import LLMSettings, Party, Retry, Seat, Share
from agentos.services.quotas import Quotas, budget_of
from agentos_sdk.errors import BadRequest, Busy, Internal, QuotaExceeded, Unavailable
from tests.llm.scripted import Scripted, Step, question

SETTINGS = LLMSettings()


def seat(*names: str, weight: float = 1.0) -> Seat:
    return (*(Party(name) for name in names[:-1]), Party(names[-1], Share(weight)))


def work(seconds: float) -> list[Step]:
    return [seconds, "done"]


def unwritten() -> Budgets:
    """Budgets of those who have none, which write nothing."""
    return Budgets(Quotas(), {}, Database(Path("nowhere"), trio.open_memory_channel[object](1000)[0]), 100)


@asynccontextmanager
async def running(
    provider: Scripted, settings: LLMSettings = SETTINGS, accounts: Budgets | None = None
) -> AsyncIterator[Line]:
    async def connect() -> Provider:
        return provider

    line = Line(settings, Asking(connect, settings.retry, settings.timeouts), accounts or unwritten(), "scripted")
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

    async def ask(self, who: Seat, text: str = "why?") -> None:
        """Begin to; it waits in the line, or is in flight, on return."""

        async def one() -> None:
            await self.line.think(who, question(text))
            self.answered.append(who[-1].name)

        self.nursery.start_soon(one)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def crowd(line: Line) -> AsyncIterator[Crowd]:
    async with trio.open_nursery() as nursery:
        yield Crowd(line, nursery, [])


async def test_an_answer_says_how_long_it_waited_and_how_long_it_took(autojump_clock: MockClock) -> None:
    async with running(Scripted([work(3.0)])) as line, trio.open_nursery() as nursery:
        nursery.start_soon(line.think, seat("a"), question())
        await wait_all_tasks_blocked()

        thought = await line.think(seat("b"), question())

        assert (thought.answer.text, thought.queued, thought.latency) == ("done", 3.0, 3.0)


async def test_one_question_is_in_flight_at_a_time(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)])

    async with running(provider) as line, crowd(line) as all_of_them:
        for name in "abc":
            await all_of_them.ask(seat(name))

    assert [at - provider.begun[0] for at in provider.begun] == [0.0, 1.0, 2.0]


async def test_concurrency_lets_more_of_them_be_in_flight(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)])

    async with running(provider, LLMSettings(concurrency=2)) as line, crowd(line) as all_of_them:
        for name in "abc":
            await all_of_them.ask(seat(name))

    assert [at - provider.begun[0] for at in provider.begun] == [0.0, 0.0, 1.0]


async def test_who_comes_once_does_not_wait_behind_a_flood(autojump_clock: MockClock) -> None:
    async with running(Scripted([work(1.0)])) as line:
        async with crowd(line) as all_of_them:
            for _ in range(20):
                await all_of_them.ask(seat("flood"))
            await all_of_them.ask(seat("light"))

        assert all_of_them.answered.index("light") == 1


async def test_who_spawns_many_has_no_more_of_the_model_than_before(autojump_clock: MockClock) -> None:
    async with running(Scripted([work(1.0)])) as line:
        async with crowd(line) as all_of_them:
            for number in range(8):
                await all_of_them.ask(seat("many", f"many/{number}"))
            for _ in range(4):
                await all_of_them.ask(seat("alone"))

        assert all_of_them.answered[:8].count("alone") == 4


async def test_a_weight_is_a_share(autojump_clock: MockClock) -> None:
    async with running(Scripted([work(1.0)])) as line:
        async with crowd(line) as all_of_them:
            for _ in range(12):
                await all_of_them.ask(seat("heavy", weight=3.0))
                await all_of_them.ask(seat("light"))

        assert all_of_them.answered[:12].count("heavy") == pytest.approx(9, abs=1)


async def test_who_is_cancelled_while_it_waits_leaves_the_line_at_once(autojump_clock: MockClock) -> None:
    provider = Scripted([work(1.0)])

    async with running(provider) as line, crowd(line) as all_of_them:
        await all_of_them.ask(seat("first"), "one")
        with trio.move_on_after(0.5):
            await line.think(seat("b"), question("never"))

        assert line.depth == 0

    assert provider.asked == ["one"]


async def test_who_is_cancelled_in_flight_is_aborted_at_once_and_the_next_one_goes(autojump_clock: MockClock) -> None:
    provider = Scripted([[math.inf], ["yes"]])

    async with running(provider) as line:
        began = trio.current_time()
        with trio.move_on_after(0.5):
            await line.think(seat("a"), question())
        await line.think(seat("b"), question())

        assert provider.aborted == [began + 0.5]
        assert provider.begun[1] == began + 0.5


async def test_places_say_who_waits_and_who_is_next(autojump_clock: MockClock) -> None:
    async with running(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for name in ("a", "b", "c", "b"):
            await all_of_them.ask(seat(name))

        assert line.places() == {("a",): Place(0, 1, None), ("b",): Place(2, 0, 1), ("c",): Place(1, 0, 2)}
        assert (line.depth, line.in_flight) == (3, 1)


async def test_a_full_line_refuses_and_keeps_what_it_has(autojump_clock: MockClock) -> None:
    async with running(Scripted([work(1.0)]), LLMSettings(per_agent=2)) as line:
        async with crowd(line) as all_of_them:
            for _ in range(3):
                await all_of_them.ask(seat("a"))
            with pytest.raises(Full):
                await line.think(seat("a"), question())

        assert all_of_them.answered == ["a"] * 3


async def test_one_that_fails_fails_alone(autojump_clock: MockClock) -> None:
    async with running(Scripted([[Rejected("400")], [ZeroDivisionError()], ["yes"]])) as line:
        with pytest.raises(BadRequest):
            await line.think(seat("a"), question())
        with pytest.raises(Internal):
            await line.think(seat("a"), question())

        assert (await line.think(seat("a"), question())).answer.text == "yes"


async def test_who_is_always_turned_away_is_not_always_next(autojump_clock: MockClock) -> None:
    provider = Scripted([[0.5, Rejected("400")]])

    async with running(provider) as line, trio.open_nursery() as nursery:

        async def insist(name: str) -> None:
            for _ in range(10):
                with pytest.raises(BadRequest):
                    await line.think(seat(name), question(name))

        nursery.start_soon(insist, "a")
        nursery.start_soon(insist, "b")

    assert {provider.asked[turn] for turn in (8, 9)} == {"a", "b"}


async def test_while_a_question_waits_to_be_asked_again_others_are_asked(autojump_clock: MockClock) -> None:
    provider = Scripted([[1.0, Failing("500")], work(1.0)])

    async with running(provider, LLMSettings(retry=Retry(first=5.0, jitter=0.0))) as line:
        async with crowd(line) as all_of_them:
            await all_of_them.ask(seat("unlucky"), "one")
            await all_of_them.ask(seat("other"), "two")

        assert all_of_them.answered == ["other", "unlucky"]
        assert provider.asked == ["one", "two", "one"]
        assert (line.depth, line.in_flight) == (0, 0)


async def test_who_leaves_in_the_pause_between_two_attempts_takes_no_place_along(autojump_clock: MockClock) -> None:
    async with running(Scripted([[Failing("500")], ["yes"]]), LLMSettings(retry=Retry(first=5.0))) as line:
        with trio.move_on_after(1.0):
            await line.think(seat("a"), question())

        for _ in range(3):
            assert (await line.think(seat("b"), question())).answer.text == "yes"


async def test_who_holds_the_model_in_silence_and_leaves_pays_for_the_time(autojump_clock: MockClock) -> None:
    provider = Scripted([[10.0, "yes"]])

    async with running(provider) as line, trio.open_nursery() as nursery:

        async def waste() -> None:
            while True:
                with trio.move_on_after(9.9):
                    await line.think(seat("waster"), question("x"))

        for _ in range(5):
            nursery.start_soon(waste)
        await trio.sleep(1)
        began = trio.current_time()
        await line.think(seat("light"), question("x" * 4000))  # a thousand tokens
        nursery.cancel_scope.cancel()

        assert trio.current_time() - began < 60.0


async def test_pieces_of_an_answer_are_heard_as_they_come(autojump_clock: MockClock) -> None:
    heard: list[tuple[str, float]] = []

    async with running(Scripted([["one ", 1.0, "two ", 1.0, "three"]])) as line:
        began = trio.current_time()
        thought = await line.think(
            seat("a"), question(), lambda text: heard.append((text, trio.current_time() - began))
        )

    assert heard == [("one ", 0.0), ("two ", 1.0), ("three", 2.0)]
    assert thought.answer.text == "one two three"


async def test_who_has_nothing_left_is_refused_before_it_waits(tmp_path: Path) -> None:
    poor: Seat = (Party("poor", Share(budget=budget_of(3600, calls=1))),)

    async with with_budgets(tmp_path) as accounts, running(Scripted([["yes"]]), accounts=accounts) as line:
        await line.think(poor, question())
        with pytest.raises(QuotaExceeded, match="poor"):
            await line.think(poor, question())

        assert (await line.think(seat("other"), question())).answer.text == "yes"


async def test_an_answer_is_cut_to_what_the_budget_leaves(tmp_path: Path) -> None:
    poor: Seat = (Party("poor", Share(budget=budget_of(3600, tokens=50))),)
    provider = Scripted([["yes"]])

    async with with_budgets(tmp_path) as accounts, running(provider, accounts=accounts) as line:
        await line.think(poor, question(max_tokens=1000))

    assert provider.most == [50 - 5]  # less what the question itself was guessed to have


async def test_an_aborted_question_costs_what_it_used(tmp_path: Path) -> None:
    poor: Seat = (Party("poor", Share(budget=budget_of(3600, tokens=1000))),)
    provider = Scripted([["12345678", Delta(usage=Usage(70, 30)), math.inf]])

    async with with_budgets(tmp_path) as accounts, running(provider, accounts=accounts) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.think, poor, question())
            while not provider.asked:
                await trio.sleep(0.001)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()

        [standing] = line.standing(poor)
        assert (standing.settled, standing.reserved) == (100, 0)


async def test_a_question_that_no_model_has_seen_costs_nothing(tmp_path: Path) -> None:
    poor: Seat = (Party("poor", Share(budget=budget_of(3600, calls=5, tokens=1000))),)
    provider = Scripted([[Failing("connection refused")]])
    settings = LLMSettings(retry=Retry(attempts=1))

    async with with_budgets(tmp_path) as accounts, running(provider, settings, accounts) as line:
        with pytest.raises(Exception, match="connection refused"):
            await line.think(poor, question())

        assert {each.quota.what: each.settled for each in line.standing(poor)} == {"tokens": 0, "calls": 0}


@asynccontextmanager
async def with_budgets(directory: Path) -> AsyncIterator[Budgets]:
    async with open_database(directory / "db", {"quotas": budgets.TABLES}) as database:
        yield await Budgets.load({}, database, 100, 0.0)


async def test_the_provider_s_connections_are_closed_at_the_end(autojump_clock: MockClock) -> None:
    provider = Scripted()

    async with running(provider) as line:
        await line.think(seat("a"), question())

    assert provider.closed


async def test_those_who_always_have_something_to_ask_get_the_same(autojump_clock: MockClock) -> None:
    """Eight agents with questions of different lengths, for five simulated minutes."""
    async with running(Scripted([work(0.1)], usage=lambda text: Usage(10, 10))) as line:

        async def insist(number: int) -> None:
            while True:
                await line.think(seat(str(number)), question("x" * 40 * (number + 1)))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(insist, number)  # two of each, so that one always waits
                nursery.start_soon(insist, number)
            for _ in range(10):
                await trio.sleep(30)
                found = line.fairness()
            nursery.cancel_scope.cancel()

    assert found > 0.99


async def test_who_lacks_only_what_others_have_reserved_waits_until_they_settle(tmp_path: Path) -> None:
    poor: Seat = (Party("poor", Share(budget=budget_of(3600, tokens=104))),)
    provider = Scripted([[0.1, "yes"]])

    async with with_budgets(tmp_path) as accounts, running(provider, LLMSettings(concurrency=2), accounts) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.think, poor, question())
            nursery.start_soon(line.think, poor, question())

        assert provider.most == [99, 86]
        assert provider.begun[1] >= provider.begun[0] + 0.1


@pytest.mark.parametrize("model", ["x:gen#", "a/../b", "%2e%2e/files", "a b", "a?b", "x" * 300])
async def test_a_model_s_name_is_no_way_into_a_url(model: str, autojump_clock: MockClock) -> None:
    provider = Scripted()

    async with running(provider) as line:
        with pytest.raises(BadRequest, match="model: expected a name"):
            await line.think(seat("a"), evolve(question(), model=model))

    assert provider.asked == []


async def test_what_waits_for_the_model_has_an_end_in_bytes(autojump_clock: MockClock) -> None:
    book = "x" * (HELD_BY_ONE // 2)

    async with running(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for _ in range(2):
            await all_of_them.ask(seat("kernel", "writer", "writer/child"), book[: HELD_BY_ONE // 2 - 1000])
        with pytest.raises(Busy, match="too large"):
            await line.think(seat("kernel", "writer"), question(book))

        assert (await line.think(seat("kernel", "other"), question(book))).answer.text == "done"


async def test_questions_that_come_back_from_a_pause_wait_for_their_turn(autojump_clock: MockClock) -> None:
    provider = Scripted([[1.0, Failing("500")]])
    settings = LLMSettings(retry=Retry(attempts=2, first=30.0, jitter=0.0))

    async with running(provider, settings) as line, trio.open_nursery() as nursery:

        async def insist() -> None:
            with contextlib.suppress(Unavailable):
                await line.think(seat("flood"), question("flood"))

        for _ in range(25):
            nursery.start_soon(insist)
        await trio.sleep(30.5)  # now many have stepped aside, and come back one after the other
        began = len(provider.asked)
        with pytest.raises(Unavailable):
            await line.think(seat("light"), question("light"))

        assert provider.asked[began:].index("light") <= 1


async def test_who_waits_for_a_reservation_does_not_keep_its_owner_from_coming_back(tmp_path: Path) -> None:
    poor: Seat = (Party("poor", Share(budget=budget_of(3600, tokens=104))),)
    provider = Scripted([[Failing("500")], ["yes"]])
    settings = LLMSettings(retry=Retry(first=0.2, jitter=0.0))

    async with with_budgets(tmp_path) as accounts, running(provider, settings, accounts) as line:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.think, poor, question("one"))
                nursery.start_soon(line.think, poor, question("two"))

    assert provider.asked in (["one", "one", "two"], ["two", "two", "one"])


async def test_a_question_that_is_over_is_gone_from_memory(autojump_clock: MockClock) -> None:
    gc.disable()
    try:
        async with running(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
            seen = []
            for name in ("answered", "aborted", "withdrawn"):
                asked = question(name)
                seen.append(weakref.ref(asked))
                with trio.move_on_after(math.inf if name == "answered" else 0.5):
                    if name == "withdrawn":
                        await all_of_them.ask(seat("other"))
                    await line.think(seat(name), asked)
                del asked
            await trio.sleep(5)

            assert [reference() for reference in seen] == [None] * 3
    finally:
        gc.enable()
