"""Budgets: what may go out, what it cost, and that the disk knows what the memory knows, whatever happens."""

import logging
import math
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.database import Database, open_database
from agentos.llm.budgets import TABLES, TIDY_INTERVAL, Budgets, Grant, Rate
from agentos.llm.settings import Account, Price, QueuePath, Share
from agentos.services.events import BudgetExhausted
from agentos.services.quotas import BudgetState, Quota, make_quotas
from agentos_sdk.errors import BadRequest, QuotaExceeded, Unavailable
from agentos_sdk.values import Usage
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

MINUTE, HOUR = 60.0, 3600.0
NOON = 12 * HOUR
PRICES = {"cheap": Price(0.1, 0.4), "dear": Price(1.25, 10.0)}
MAX_TOKENS = 800  # of a question that names no bound

TEAM = Account("team", Share(budget=(*make_quotas(MINUTE, tokens=9000), *make_quotas(HOUR, money=0.09))))
WRITER = Account("team/writer", Share(budget=make_quotas(MINUTE, tokens=5000, calls=4)))
HELPER = Account("team/writer/helper", Share(budget=make_quotas(HOUR, money=0.03)))
READER = Account("team/reader")
FREE = Account("free")
SEATS: list[QueuePath] = [(TEAM,), (TEAM, WRITER), (TEAM, WRITER, HELPER), (TEAM, READER), (FREE,)]


@asynccontextmanager
async def opened(path: Path, now: float = NOON) -> AsyncIterator[tuple[Database, Budgets]]:
    async with open_database(path / "db", {"quotas": TABLES}) as database:
        yield database, await Budgets.load(PRICES, database, MAX_TOKENS, now)


def queue_path(*quotas: Quota, name: str = "writer") -> QueuePath:
    return (Account("kernel"), Account(name, Share(budget=quotas)))


def left(budgets: Budgets, queue_path: QueuePath, now: float = NOON) -> list[int]:
    return [standing.left for standing in budgets.budget_states(queue_path, now)]


@define
class World:
    """Calls, in steps, and what each counter may be over its limit by: what was used beyond what was reserved for it
    since the last grant."""

    database: Database
    budgets: Budgets
    now: float = NOON
    under_way: list[tuple[QueuePath, str, int, Grant]] = field(factory=list)
    beyond: Counter[tuple[str, str, float]] = field(factory=Counter)

    async def reserve(self, queue_path: QueuePath, model: str, tokens_in: int, max_tokens: int | None) -> None:
        try:
            grant = await self.budgets.reserve(queue_path, model, tokens_in, max_tokens, self.now)
        except QuotaExceeded:
            return
        assert (grant.max_tokens or MAX_TOKENS) == (max_tokens or MAX_TOKENS)
        self.under_way.append((queue_path, model, tokens_in, grant))
        overrunning = Counter(each.queue_path[-1].name for *_, each in self.under_way if each.may_overrun)
        assert all(count == 1 for count in overrunning.values())
        for standing in self.budgets.budget_states(queue_path, self.now):
            self.beyond.pop(key(standing), None)

    def settle(self, which: int, part_in: float, part_out: float, calls: int) -> None:
        if not self.under_way:
            return
        _, model, tokens_in, grant = self.under_way.pop(which % len(self.under_way))
        generated = MAX_TOKENS if grant.max_tokens is None else grant.max_tokens
        usage = Usage(int(tokens_in * part_in), int(generated * part_out / 2), int(generated * part_out / 2))
        cost = Rate.of(model, PRICES[model]).cost(usage)
        used = {"tokens": usage.total, "calls": calls, "money": cost}
        for hold in grant.reservation.holds if grant.reservation is not None else ():
            self.beyond[hold.key.name, hold.key.what, hold.key.per] += max(0, used[hold.key.what] - hold.amount)
        self.budgets.settle(grant, usage, calls, self.now)

    async def restart(self) -> None:
        """The kernel is killed: of what is under way nobody hears again."""
        self.under_way.clear()
        self.budgets = await Budgets.load(PRICES, self.database, MAX_TOKENS, self.now)

    async def examine(self) -> None:
        on_disk = await Budgets.load(PRICES, self.database, MAX_TOKENS, self.now)
        for queue_path in SEATS:
            standings = self.budgets.budget_states(queue_path, self.now)
            assert on_disk.budget_states(queue_path, self.now) == standings
            for standing in standings:
                assert standing.settled + standing.reserved <= standing.quota.most + self.beyond[key(standing)]


def key(standing: BudgetState) -> tuple[str, str, float]:
    return standing.name, standing.quota.what, standing.quota.per


RESERVE = st.tuples(
    st.just("reserve"),
    st.sampled_from(SEATS),
    st.sampled_from(sorted(PRICES)),
    st.integers(0, 200),
    st.none() | st.integers(1, 200) | st.integers(1000, 9000),
)
SETTLE = st.tuples(
    st.just("settle"), st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0, 1.5]), st.floats(0, 1.5), st.integers(0, 3)
)
RESTART = st.just(("restart",))
WAIT = st.tuples(st.just("wait"), st.sampled_from([1.0, 45.0, HOUR]))
STEPS = st.lists(RESERVE | RESERVE | SETTLE | SETTLE | RESTART | WAIT, max_size=30)


@given(STEPS)
@settings(max_examples=rounds(80))
def test_the_disk_knows_what_the_memory_knows_and_only_what_was_under_way_goes_beyond_a_budget(
    steps: list[tuple[object, ...]],
) -> None:
    async def main(path: Path) -> None:
        async with opened(path) as (database, budgets):
            world = World(database, budgets)
            for what, *arguments in steps:
                if what == "reserve":
                    await world.reserve(*arguments)  # type: ignore[arg-type]
                elif what == "settle":
                    world.settle(*arguments)  # type: ignore[arg-type]
                elif what == "restart":
                    await world.restart()
                else:
                    world.now += arguments[0]  # type: ignore[operator]
                await world.examine()

    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, Path(directory))


@given(st.lists(RESERVE, min_size=1, max_size=12))
@settings(max_examples=rounds(30))
def test_calls_exceed_a_budget_by_no_more_than_one_answer_of_each_agent(steps: list[tuple[object, ...]]) -> None:
    """All of them generate all that they may."""

    async def main(path: Path) -> None:
        async with opened(path) as (_, budgets):
            grants: list[Grant] = []

            async def call(queue_path: QueuePath, model: str, tokens_in: int, max_tokens: int | None) -> None:
                try:
                    grant = await budgets.reserve(queue_path, model, tokens_in, max_tokens, NOON)
                except QuotaExceeded:
                    return
                grants.append(grant)
                await trio.lowlevel.checkpoint()
                generated = MAX_TOKENS if grant.max_tokens is None else grant.max_tokens
                budgets.settle(grant, Usage(tokens_in, generated), 1, NOON)

            async with trio.open_nursery() as nursery:
                for _, *arguments in steps:
                    nursery.start_soon(call, *arguments)  # type: ignore[arg-type]
            for queue_path in SEATS:
                for each in budgets.budget_states(queue_path, NOON):
                    assert each.reserved == 0
                    assert each.settled <= each.quota.most + longest_answers(grants, each)

    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, Path(directory))


def longest_answers(grants: list[Grant], state: BudgetState) -> int:
    """The longest answer of each agent, of those that may overrun what was reserved of this budget."""
    longest: dict[str, int] = {}
    for grant in grants:
        if grant.may_overrun and state.name in [account.name for account in grant.queue_path]:
            generated = MAX_TOKENS if grant.max_tokens is None else grant.max_tokens
            cost = Rate.of(grant.model, PRICES[grant.model]).cost(Usage(0, generated)) + 1
            amount = {"tokens": generated, "money": cost}.get(state.quota.what, 0)
            agent = grant.queue_path[-1].name
            longest[agent] = max(longest.get(agent, 0), amount)
    return sum(longest.values())


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**6),
    st.floats(0, 1000, allow_nan=False),
    st.floats(0.001, 1000, allow_nan=False),
)
def test_what_money_affords_is_the_most_that_it_pays_for(
    left: int, tokens_in: int, input: float, output: float
) -> None:
    rate = Rate.of("m", Price(input, output))

    generated = rate.affords(left, Usage(tokens_in))

    if generated >= 0:
        assert rate.cost(Usage(tokens_in, int(generated))) <= left < rate.cost(Usage(tokens_in, int(generated) + 1))
    else:
        assert rate.cost(Usage(tokens_in)) > left


def test_money_is_exact_and_rounded_up_to_the_billionth() -> None:
    # 0.1 * 1000 * 3 and 0.7 * 1000 * 9 as decimals, not as floats
    assert Rate.of("m", Price(0.1, 0.7)).cost(Usage(3, 9)) == 6600
    assert Rate.of("m", Price(0.0001, 0.0)).cost(Usage(1, 5)) == 1
    assert Rate.of("m", Price(0.3, 0.0)).affords(300, Usage(1)) == math.inf
    assert Rate.of("m", Price(0.3, 0.0)).affords(299, Usage(1)) < 0


@each_row(
    ("model", "price", "cost"),
    [
        ("m", Price(3.0, 15.0), 3 * 1000 + 15 * 20),
        ("claude-x", Price(3.0, 15.0), 3 * 100 + 0.3 * 600 + 3.75 * 200 + 6 * 100 + 15 * 20),
        ("anthropic/Claude-x", Price(3.0, 15.0, cache_read=0.5), 3 * 100 + 0.5 * 600 + 3.75 * 200 + 6 * 100 + 15 * 20),
        ("m", Price(3.0, 15.0, 0.75), 3 * 400 + 0.75 * 600 + 15 * 20),
        ("m", Price(3.0, 15.0, 0.0, 4.0, 5.0), 3 * 100 + 4 * 200 + 5 * 100 + 15 * 20),
    ],
)
def test_cached_input_has_prices_of_its_own(model: str, price: Price, cost: float) -> None:
    usage = Usage(1000, 20, 0, cache_read=600, cache_creation=300, cache_creation_1h=100)

    assert Rate.of(model, price).cost(usage) == round(cost * 1000)


async def test_money_is_reserved_for_input_that_is_written_to_a_cache_and_settled_by_what_was(tmp_path: Path) -> None:
    agent = queue_path(*make_quotas(HOUR, money=0.003))
    async with open_database(tmp_path / "db", {"quotas": TABLES}) as database:
        budgets = await Budgets.load({"claude-x": Price(10.0, 0.0)}, database, MAX_TOKENS, NOON)

        async def ask(tokens: int, used: Usage, for_hour: bool = False) -> int:
            grant = await budgets.reserve(agent, "claude-x", tokens, 10, NOON, for_hour=for_hour)
            [state] = budgets.budget_states(agent, NOON)
            budgets.settle(grant, used, 1, NOON)
            return state.reserved

        assert await ask(100, Usage(100, 0, 0, 0, 100, 100), for_hour=True) == 2_000_000
        assert left(budgets, agent) == [1_000_000]
        with pytest.raises(QuotaExceeded):
            budgets.check(agent, "claude-x", 80, 10, NOON, for_hour=True)
        assert await ask(80, Usage(80, cache_read=80)) == 1_000_000
        assert left(budgets, agent) == [1_000_000 - 80_000]


async def test_thoughts_cost_what_output_costs(tmp_path: Path) -> None:
    writer = queue_path(*make_quotas(HOUR, tokens=1000, money=1.0))

    async with opened(tmp_path) as (_, budgets):
        grant = await budgets.reserve(writer, "dear", 100, None, NOON)
        budgets.settle(grant, Usage(input=100, output=10, thinking=30), 1, NOON)

        tokens, money = budgets.budget_states(writer, NOON)
        assert tokens.settled == 140
        assert money.settled == 1250 * 100 + 10000 * 40


def tokens(budgets: Budgets, queue_path: QueuePath) -> tuple[int, int]:
    [state] = [each for each in budgets.budget_states(queue_path, NOON) if each.quota.what == "tokens"]
    return state.settled, state.reserved


async def test_the_provider_is_asked_for_what_was_asked_and_a_likely_answer_is_reserved(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, budgets):

        async def reserved(most: int, asked: int | None, name: str) -> tuple[int | None, int]:
            agent = queue_path(*make_quotas(HOUR, tokens=most), name=name)
            grant = await budgets.reserve(agent, "cheap", 100, asked, NOON)
            return grant.max_tokens, tokens(budgets, agent)[1] - 100

        assert await reserved(200_000, 32_000, "a") == (32_000, 1024)
        assert await reserved(200_000, 128_000, "b") == (128_000, 1024)
        assert await reserved(200_000, 500, "c") == (500, 500)
        assert await reserved(200_000, None, "d") == (MAX_TOKENS, MAX_TOKENS)
        assert await reserved(1124, 32_000, "e") == (32_000, 1024)
        assert await reserved(200, 100, "f") == (100, 100)

        calls = queue_path(*make_quotas(HOUR, calls=2), name="g")
        assert (await budgets.reserve(calls, "cheap", 100, None, NOON)).max_tokens is None
        assert (await budgets.reserve(calls, "cheap", 100, 64_000, NOON)).max_tokens == 64_000


async def test_the_likely_length_of_an_answer_is_learned_for_each_agent_and_model(tmp_path: Path) -> None:
    many = make_quotas(HOUR, tokens=200_000)
    long, other = queue_path(*many, name="long"), queue_path(*many, name="other")

    async with opened(tmp_path) as (_, budgets):

        async def ask(agent: QueuePath, model: str, generated: int) -> int:
            """How much was reserved of the answer."""
            before = sum(tokens(budgets, agent))
            grant = await budgets.reserve(agent, model, 0, 32_000, NOON)
            reserved = sum(tokens(budgets, agent)) - before
            budgets.settle(grant, Usage(0, generated), 1, NOON)
            return reserved

        assert await ask(long, "cheap", 20_000) == 1024
        assert await ask(long, "cheap", 100) == 20_000, "a longer answer counts at once"
        assert await ask(long, "cheap", 100) == 16_020, "shorter ones by and by"
        assert await ask(long, "dear", 100) == 1024
        assert await ask(other, "cheap", 100) == 1024
        assert await ask(long, "cheap", 129_700) == 12_836
        assert tokens(budgets, long) == (150_000, 0)
        assert await ask(long, "cheap", 100) == 25_000, "half of what is left"


async def test_of_money_a_likely_answer_is_reserved_too(tmp_path: Path) -> None:
    rich = queue_path(*make_quotas(HOUR, money=1.0), name="rich")
    poor = queue_path(*make_quotas(HOUR, money=0.011), name="poor")

    async with opened(tmp_path) as (_, budgets):
        assert (await budgets.reserve(rich, "dear", 100, 32_000, NOON)).max_tokens == 32_000
        [money] = budgets.budget_states(rich, NOON)
        assert money.reserved == Rate.of("dear", PRICES["dear"]).cost(Usage(100, 1024))

        assert (await budgets.reserve(poor, "dear", 100, 32_000, NOON)).max_tokens == 32_000  # 1,087 are left
        with pytest.raises(QuotaExceeded, match=r"money: the quota of 'other' is 0\.01 per 1h"):
            budgets.check(
                queue_path(*make_quotas(HOUR, money=0.01), name="other"), "dear", 100, 32_000, NOON
            )  # 987 are left


async def test_an_agents_further_questions_at_once_reserve_all_that_they_may_generate_or_wait(tmp_path: Path) -> None:
    agent = queue_path(*make_quotas(HOUR, tokens=200_000))
    sibling = (Account("kernel"), agent[1], Account("writer/child"))

    async with opened(tmp_path) as (_, budgets):
        first, *others = [await budgets.reserve(agent, "cheap", 500, 32_000, NOON) for _ in range(6)]
        assert tokens(budgets, agent) == (0, 6 * 500 + 1024 + 5 * 32_000)
        assert [each.may_overrun for each in (first, *others)] == [True] + 5 * [False]
        with pytest.raises(QuotaExceeded):
            await budgets.reserve(agent, "cheap", 500, 32_000, NOON)
        budgets.check(agent, "cheap", 500, 32_000, NOON)
        child = await budgets.reserve(sibling, "cheap", 500, 32_000, NOON)
        assert child.may_overrun, "it is another agent"

        budgets.settle(first, Usage(500, 2000), 1, NOON)
        assert (await budgets.reserve(agent, "cheap", 500, 32_000, NOON)).may_overrun


async def test_a_budget_that_an_answer_overran_is_told_once_and_refuses(tmp_path: Path) -> None:
    told: list[object] = []
    agent = queue_path(*make_quotas(HOUR, tokens=2000))

    async with open_database(tmp_path / "db", {"quotas": TABLES}) as database:
        budgets = await Budgets.load(PRICES, database, MAX_TOKENS, NOON, told.append)
        budgets.settle(await budgets.reserve(agent, "cheap", 0, 32_000, NOON), Usage(0, 31_000), 1, NOON)

        assert told == [BudgetExhausted("writer", "tokens", 31_000, 2000, HOUR, NOON + HOUR)]
        assert [each.name for each in budgets.refusing(agent, NOON)] == ["writer"]
        with pytest.raises(QuotaExceeded, match="is 2000 per 1h, of which 31000 used"):
            budgets.check(agent, "cheap", 0, 1, NOON)
        assert len(told) == 1


@pytest.mark.parametrize("left", [1023, 500, 1, 0])
async def test_with_less_than_a_short_answer_left_a_question_is_refused_unless_it_asks_for_less(
    tmp_path: Path, left: int
) -> None:
    agent = queue_path(*make_quotas(HOUR, tokens=4000))

    async with opened(tmp_path) as (_, budgets):
        budgets.settle(await budgets.reserve(agent, "cheap", 0, 1, NOON), Usage(0, 4000 - left), 1, NOON)

        for asked in (left + 1, 32_000):
            with pytest.raises(QuotaExceeded, match=f"needs {min(asked, 1024)} at least: it renews in 1h"):
                budgets.check(agent, "cheap", 0, asked, NOON)
        if left:
            budgets.check(agent, "cheap", 0, left, NOON)
            assert (await budgets.reserve(agent, "cheap", 0, left, NOON)).max_tokens == left


async def test_a_budget_too_small_for_a_short_answer_says_what_needs_less(tmp_path: Path) -> None:
    agent = queue_path(*make_quotas(HOUR, tokens=1000))

    async with opened(tmp_path) as (_, budgets):
        with pytest.raises(QuotaExceeded, match="needs 1034 at least: it never fits, with 1024 tokens for the answer"):
            budgets.check(agent, "cheap", 10, 32_000, NOON)
        budgets.check(agent, "cheap", 10, 900, NOON)


async def test_a_request_that_cant_be_granted_is_told_which_budget_and_when_it_renews(tmp_path: Path) -> None:
    writer = (Account("team", Share(budget=make_quotas(HOUR, tokens=100))), Account("team/writer"))

    async with opened(tmp_path) as (_, budgets):
        budgets.check(writer, "cheap", 99, 1, NOON)
        budgets.settle(await budgets.reserve(writer, "cheap", 50, 50, NOON), Usage(50, 45), 1, NOON)

        with pytest.raises(QuotaExceeded) as checked:
            budgets.check(writer, "cheap", 5, 1, NOON + 600)
        with pytest.raises(QuotaExceeded) as reserved:
            await budgets.reserve(writer, "cheap", 5, 1, NOON + 600)

    assert (
        str(checked.value)
        == str(reserved.value)
        == (
            "tokens: the quota of 'team' is 100 per 1h, of which 95 used and 0 reserved; "
            "this needs 6 at least: it renews in 50m"
        )
    )
    assert reserved.value.details["renews_at"] == NOON + HOUR


async def test_no_request_is_turned_away_before_it_waits_for_what_others_have_only_reserved(
    tmp_path: Path,
) -> None:
    writer = queue_path(*make_quotas(HOUR, tokens=100))

    async with opened(tmp_path) as (_, budgets):
        grant = await budgets.reserve(writer, "cheap", 40, 60, NOON)

        budgets.check(writer, "cheap", 40, 60, NOON)
        with pytest.raises(QuotaExceeded, match="0 used and 100 reserved"):
            await budgets.reserve(writer, "cheap", 40, 60, NOON)

        budgets.settle(grant, Usage(40, 1), 1, NOON)
        assert (await budgets.reserve(writer, "cheap", 39, 20, NOON)).max_tokens == 20


async def test_money_for_a_model_without_a_price_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    writer = queue_path(*make_quotas(HOUR, money=1.0))

    async with opened(tmp_path) as (_, budgets):
        with pytest.raises(BadRequest, match=r"^model: 'secret' has no price, and the money of 'writer' is limited"):
            budgets.check(writer, "secret", 1, 1, NOON)
        with pytest.raises(BadRequest, match=r"^model: 'secret' has no price"):
            await budgets.reserve(writer, "secret", 1, 1, NOON)

        reader = queue_path(*make_quotas(HOUR, tokens=100), name="reader")
        budgets.settle(await budgets.reserve(reader, "secret", 10, 90, NOON), Usage(10, 5), 1, NOON)
        assert left(budgets, reader) == [85]


async def test_an_agent_without_a_budget_needs_no_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as (_, budgets):
        pass  # and it is closed

    budgets.check(queue_path(), "secret", 10**9, None, NOON)
    grant = await budgets.reserve(queue_path(), "secret", 10**9, None, NOON)
    budgets.settle(grant, Usage(10**9, 10**9), 9, NOON)

    assert grant.max_tokens is None
    assert budgets.budget_states(queue_path(), NOON) == []
    assert caplog.records == []


async def test_a_reservation_is_on_disk_before_the_question_leaves(tmp_path: Path) -> None:
    writer = queue_path(*make_quotas(HOUR, tokens=100))

    async with opened(tmp_path) as (_, budgets):
        await budgets.reserve(writer, "cheap", 40, 50, NOON)

        connection = sqlite3.connect(tmp_path / "db")  # somebody else, so this is what was committed
        assert connection.execute("SELECT * FROM quotas").fetchall() == [("writer", "tokens", HOUR, NOON, 0, 90)]
        connection.close()


async def test_what_a_killed_kernel_had_reserved_stays_so_until_its_window_ends(tmp_path: Path) -> None:
    writer = queue_path(*make_quotas(HOUR, tokens=100))
    async with opened(tmp_path) as (_, budgets):
        await budgets.reserve(writer, "cheap", 40, 50, NOON)

    async with opened(tmp_path, NOON + 60) as (_, budgets):
        assert left(budgets, writer, NOON + 60) == [10]
    async with opened(tmp_path, NOON + HOUR) as (database, budgets):
        assert left(budgets, writer, NOON + HOUR) == [100]
        assert await database.write(rows) == 0


async def test_a_reservation_whose_caller_goes_away_before_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    writer = queue_path(*make_quotas(HOUR, tokens=100))
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    async with opened(tmp_path) as (database, budgets):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.write, hold)
            assert await trio.to_thread.run_sync(begun.wait, 30)
            with trio.CancelScope() as caller:
                nursery.start_soon(budgets.reserve, writer, "cheap", 10, 10, NOON)  # sees both reservations
                nursery.start_soon(cancel_when_blocked, caller)
                await budgets.reserve(writer, "cheap", 30, 50, NOON)
            assert caller.cancelled_caught
            go_on.set()

        assert left(budgets, writer) == [80]
        again = await Budgets.load(PRICES, database, MAX_TOKENS, NOON)
        assert left(again, writer) == [80]


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_while_nothing_can_be_written_no_agent_with_a_budget_may_ask_and_no_count_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentos.database_file.BUSY_TIMEOUT", 0.01)
    writer = queue_path(*make_quotas(HOUR, tokens=100))

    async with opened(tmp_path) as (database, budgets):
        before = await budgets.reserve(writer, "cheap", 10, 10, NOON)
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # it keeps everybody else from writing

        with caplog.at_level(logging.ERROR), pytest.raises(Unavailable) as caught:
            await budgets.reserve(writer, "cheap", 30, 30, NOON)
        budgets.settle(before, Usage(10, 5), 1, NOON)
        await budgets.reserve(queue_path(), "cheap", 10, None, NOON)

        assert str(caught.value) == "budgets can't be saved: see the kernel's log"
        assert "another program has it locked" in caplog.text
        assert left(budgets, writer) == [85]
        with pytest.raises(Exception, match="another program has it locked"):
            await database.write(rows)
        other.execute("ROLLBACK")
        other.close()

        budgets.settle(await budgets.reserve(writer, "cheap", 1, 1, NOON), Usage(1, 1), 1, NOON)
        again = await Budgets.load(PRICES, database, MAX_TOKENS, NOON)
        assert left(again, writer) == left(budgets, writer) == [83]


async def test_a_budget_that_was_changed_holds_from_the_next_question_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, budgets):
        budgets.settle(
            await budgets.reserve(queue_path(*make_quotas(HOUR, tokens=100)), "cheap", 40, 40, NOON),
            Usage(40, 40),
            1,
            NOON,
        )

        assert left(budgets, queue_path(*make_quotas(HOUR, tokens=90))) == [10]
        assert left(budgets, queue_path()) == []
        assert left(budgets, queue_path(*make_quotas(HOUR, tokens=200))) == [120]


async def test_names_that_are_no_more_are_forgotten_with_their_windows(tmp_path: Path) -> None:
    async with opened(tmp_path) as (database, budgets):
        for number in range(50):
            gone = queue_path(*make_quotas(MINUTE, tokens=100), name=f"agent{number}")
            budgets.settle(await budgets.reserve(gone, "cheap", 1, 1, NOON), Usage(1, 1), 1, NOON)
        assert await database.write(rows) == 50

        grant = await budgets.reserve(queue_path(*make_quotas(MINUTE, tokens=100)), "cheap", 1, 1, NOON + TIDY_INTERVAL)
        budgets.settle(grant, Usage(1, 1), 1, NOON + TIDY_INTERVAL)
        assert await database.write(rows) == 1
        assert list(budgets._limits) == ["writer"]


def rows(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM quotas").fetchone()
    assert isinstance(count, int)
    return count


async def test_a_grant_is_settled_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, budgets):
        grant = await budgets.reserve(queue_path(*make_quotas(HOUR, tokens=100)), "cheap", 40, 50, NOON)
        budgets.settle(grant, Usage(), 0, NOON)

        with pytest.raises(KeyError):
            budgets.settle(grant, Usage(), 0, NOON)


async def test_what_is_charged_is_refused_before_and_counted_after_its_use_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    path = queue_path(*make_quotas(HOUR, http_requests=2, http_bytes=1000))
    one = {"http_requests": 1, "http_bytes": 0}
    async with opened(tmp_path) as (_, budgets):
        with pytest.raises(QuotaExceeded, match="never fits"):
            budgets.charge(path, {"http_requests": 1, "http_bytes": 1001}, NOON, used=False)
        assert left(budgets, path) == [2, 1000], "what was refused isn't counted"
        budgets.charge(path, one, NOON, used=False)
        with pytest.raises(QuotaExceeded, match="http_bytes: the quota of 'writer' is 1000 per 1h"):
            budgets.charge(path, {"http_bytes": 1500}, NOON, used=True)
        assert left(budgets, path) == [1, 0], "what was used is"
        with pytest.raises(QuotaExceeded, match=r"http_bytes: .* of which 1500 used"):
            budgets.charge(path, one, NOON, used=False)
        budgets.charge((FREE,), one, NOON, used=False)

    async with opened(tmp_path) as (_, budgets):
        assert left(budgets, path) == [1, 0]
        assert left(budgets, path, NOON + HOUR) == [2, 1000]


async def test_quotas_of_http_do_not_bound_what_the_model_may_answer(tmp_path: Path) -> None:
    path = queue_path(*make_quotas(HOUR, http_requests=0))
    async with opened(tmp_path) as (_, budgets):
        grant = await budgets.reserve(path, "cheap", 10, None, NOON)

        assert grant.max_tokens is None
