"""Aliases, fallbacks, keys, limits and several providers, with providers that do what a test says."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.database import Database, open_database
from agentos.llm import budgets
from agentos.llm.answers.sampling import Sampling
from agentos.llm.ask import ProviderClient
from agentos.llm.budgets import Budgets
from agentos.llm.line import Line
from agentos.llm.models.routes import Route
from agentos.llm.providers.provider import (
    Answer,
    Delta,
    Denied,
    Failing,
    Image,
    Message,
    OnDelta,
    Provider,
    Question,
    RateLimited,
    Rejected,
)
from agentos.llm.queue.classes import CLASS_WEIGHTS
from agentos.llm.queue.fair_queue import jain_index
from agentos.llm.queue.request import ThinkResult
from agentos.llm.settings import (
    Account,
    LLMSettings,
    ModelLimits,
    Price,
    ProviderName,
    ProviderSettings,
    QueuePath,
    Retry,
    Share,
)
from agentos.services.quotas import Quotas, make_quotas
from agentos_sdk.errors import BadRequest, NotFound, QuotaExceeded, Unavailable
from agentos_sdk.values import Fallback, LLMClass, Usage
from tests.llm.scripted import Scripted, Step, question

ACCEPTED = Delta(accepted=True)
HANGS: Sequence[Step] = [math.inf]
RETRY = Retry(attempts=3, first=1.0, jitter=0.0, patience=60.0)
TWO = LLMSettings(
    model="fast",
    retry=RETRY,
    providers={"p": ProviderSettings("openai", models=("a*",)), "q": ProviderSettings("gemini", models=("b*",))},
    aliases={"fast": ("a", "b"), "gpt-*": ("a", "b")},
)


def path(name: str, budget: Sequence[object] = ()) -> QueuePath:
    return (Account("kernel"), Account(name, Share(budget=budget)))  # type: ignore[arg-type]


@asynccontextmanager
async def open_line(
    providers: Mapping[str, Sequence[Provider]],
    settings: LLMSettings = TWO,
    accounts: Budgets | None = None,
    kinds: Mapping[str, ProviderName] = {},
) -> AsyncIterator[Line]:
    """A line with these providers by name, each with one connection for each key."""

    def connector(provider: Provider):  # type: ignore[no-untyped-def]
        async def connect() -> Provider:
            return provider

        return connect

    first, *others = (
        ProviderClient(
            connector(keys[0]),
            settings.retry,
            settings.timeouts,
            name=name,
            kind=kinds.get(name),
            further_keys=[connector(key) for key in keys[1:]],
            limits=settings.limits,
            concurrency=settings.providers[name].concurrency if name in settings.providers else None,
        )
        for name, keys in providers.items()
    )
    accounts = accounts or Budgets(Quotas(), {}, Database(Path("nowhere")), 100)
    line = Line(settings, first, accounts, settings.model or "", others=others)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.serve)
        await line.prepare()
        yield line
        nursery.cancel_scope.cancel()


async def ask(line: Line, model: str = "fast", name: str = "x", **more: object) -> ThinkResult:
    return await line.think(path(name), replace(question(), model=model), **more)  # type: ignore[arg-type]


async def time_of(line: Line, model: str = "fast", name: str = "x") -> tuple[ThinkResult, float]:
    began = trio.current_time()
    return await ask(line, model, name), trio.current_time() - began


OUTAGES: Mapping[str, Sequence[Step]] = {
    "it refuses": [Failing("503")],
    "it refuses the key": [Denied("401")],
    "it is silent": HANGS,
    "it breaks off": [Delta("half"), Failing("broke off")],
    "it is paused for long": [RateLimited("429", 30.0)],
    "it refuses slowly": [1.5, Failing("503")],
    "it accepts, then breaks off": [ACCEPTED, 1.0, Failing("broke off")],
    "it accepts, then is silent": [ACCEPTED, math.inf],
    "it begins without a word, then is silent": [ACCEPTED, Delta(), math.inf],
    "it begins, then is silent": [ACCEPTED, Delta("half"), math.inf],
}
BOUNDED = replace(TWO, limits={"a": ModelLimits(first_token=2.5, idle=2.5)})  # they end the last three so soon


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=list(OUTAGES))
async def test_an_outage_of_the_first_model_costs_little_time(
    outage: Sequence[Step], autojump_clock: MockClock
) -> None:
    providers = {"p": [Scripted([outage])], "q": [Scripted([["yes"]])]}

    async with open_line(providers, BOUNDED) as line:
        thought, seconds = await time_of(line)

    assert (thought.answer.text, thought.model, thought.requested_model) == ("yes", "b", "fast")
    assert [each.model for each in thought.fallbacks] == ["a"]
    assert seconds <= TWO.fallback_after + 1.0


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("outage", OUTAGES.values(), ids=list(OUTAGES))
async def test_many_questions_that_meet_an_outage_wait_no_longer(
    outage: Sequence[Step], concurrency: int, autojump_clock: MockClock
) -> None:
    providers = {"p": [Scripted([outage])], "q": [Scripted([["yes"]])]}
    took: list[float] = []

    async with open_line(providers, replace(BOUNDED, concurrency=concurrency)) as line, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            await trio.sleep(number * 0.3)
            thought, seconds = await time_of(line, name=f"agent {number}")
            assert thought.model == "b"
            took.append(seconds)

        for number in range(30):
            nursery.start_soon(one, number)

    assert len(took) == 30
    assert max(took) <= TWO.fallback_after + 1.0


@pytest.mark.parametrize("outage", [OUTAGES["it refuses"], OUTAGES["it refuses the key"]])
async def test_a_question_that_names_a_model_is_sent_to_no_other(
    outage: Sequence[Step], autojump_clock: MockClock
) -> None:
    other = Scripted([["yes"]])

    async with open_line({"p": [Scripted([outage])], "q": [other]}) as line:
        with pytest.raises(Unavailable):
            await ask(line, "a")
        named = await ask(line, "b")

    assert len(other.asked) == 1
    assert (named.requested_model, named.fallbacks) == (None, [])


async def test_a_slow_answer_is_no_outage(autojump_clock: MockClock) -> None:
    slow: Sequence[Step] = [ACCEPTED, 30.0, Delta("slow"), 20.0, Delta("ly")]

    async with open_line({"p": [Scripted([slow])], "q": [Scripted()]}) as line:
        thought, seconds = await time_of(line)

    assert (thought.answer.text, thought.fallbacks, seconds) == ("slowly", [], 50.0)


@pytest.mark.parametrize(("seconds", "model"), [(9.0, "a"), (13.0, "b")])
async def test_a_large_question_has_time_to_be_sent(seconds: float, model: str, autojump_clock: MockClock) -> None:
    upload: Sequence[Step] = [seconds, ACCEPTED, 1.0, Delta("seen")]
    image = Image(bytes(10 << 20), "image/png")
    large = replace(question(), model="fast", messages=[Message("user", "look", images=[image])])

    async with open_line({"p": [Scripted([upload])], "q": [Scripted([["yes"]])]}) as line:
        thought = await line.think(path("x"), large)

    assert thought.model == model


async def test_a_model_without_a_limit_of_its_own_has_the_first_token_time_of_all(autojump_clock: MockClock) -> None:
    accepts: Sequence[Step] = [ACCEPTED, math.inf]

    async with open_line({"p": [Scripted([accepts])], "q": [Scripted([["yes"]])]}) as line:
        thought, seconds = await time_of(line)

    assert (thought.model, seconds) == ("b", TWO.timeouts.first_token)


async def test_without_idle_of_its_own_a_model_that_stops_in_its_answer_has_that_of_all(
    autojump_clock: MockClock,
) -> None:
    stops: Sequence[Step] = [ACCEPTED, 1.0, Delta("half"), math.inf]
    settings = replace(TWO, limits={"a": ModelLimits(first_token=2.5)})

    async with open_line({"p": [Scripted([stops])], "q": [Scripted([["yes"]])]}, settings) as line:
        thought, seconds = await time_of(line)

    assert (thought.model, seconds) == ("b", 1.0 + TWO.timeouts.idle)


async def test_a_short_pause_is_waited_for(autojump_clock: MockClock) -> None:
    first = Scripted([[RateLimited("429", 1.0)], ["yes"]])

    async with open_line({"p": [first], "q": [Scripted()]}) as line:
        thought, seconds = await time_of(line)

    assert (thought.model, thought.fallbacks, seconds) == ("a", [], 1.0)


async def test_a_pause_beyond_the_callers_deadline_is_not_waited_for(autojump_clock: MockClock) -> None:
    first = Scripted([[RateLimited("429", 1.9)], ["late"]])

    async with open_line({"p": [first], "q": [Scripted([["yes"]])]}) as line:
        with trio.fail_after(0.5):
            thought = await ask(line)

    assert thought.model == "b"


@pytest.mark.parametrize(
    ("script", "error"), [([Rejected("no")], BadRequest), ([Delta("half"), Rejected("filtered")], BadRequest)]
)
async def test_a_bad_request_is_no_reason_for_another_model(
    script: Sequence[Step], error: type[Exception], autojump_clock: MockClock
) -> None:
    other = Scripted()

    async with open_line({"p": [Scripted([script])], "q": [other]}) as line:
        with pytest.raises(error):
            await ask(line)

    assert other.asked == []


async def test_a_model_that_its_provider_does_not_have_is_passed_over(autojump_clock: MockClock) -> None:
    retired = Scripted([[Rejected("a is retired", status=404)]])

    async with open_line({"p": [retired], "q": [Scripted([["yes"]])]}) as line:
        thought = await ask(line)
        with pytest.raises(BadRequest, match="a is retired") as rejected:
            await ask(line, "a")

    assert (thought.model, [each.model for each in thought.fallbacks]) == ("b", ["a"])
    assert "a is retired" in thought.fallbacks[0].reason
    assert (rejected.value.code, rejected.value.details) == ("bad_request", {"upstream_status": 404})


async def test_if_no_provider_has_a_model_of_an_alias_it_is_a_bad_request(autojump_clock: MockClock) -> None:
    gone = [[Rejected("unknown model", status=404)]]

    async with open_line({"p": [Scripted(gone)], "q": [Scripted(gone)]}) as line:
        with pytest.raises(BadRequest, match=r"no model of fast answers: a: .*unknown model.*; b: .*unknown model"):
            await ask(line)


async def test_after_the_first_streamed_piece_there_is_no_other_model(autojump_clock: MockClock) -> None:
    other, heard = Scripted(), list[str]()

    async with open_line({"p": [Scripted([[Delta("half"), Failing("broke off")]])], "q": [other]}) as line:
        with pytest.raises(Unavailable, match="broke off"):
            await ask(line, on_text=heard.append)

    assert (heard, other.asked) == (["half"], [])


async def test_three_failures_take_a_model_out_and_one_question_probes_it(autojump_clock: MockClock) -> None:
    first = Scripted([[Failing("503")]] * 4 + [["back"]])

    async with open_line({"p": [first], "q": [Scripted([["yes"]])]}) as line:
        for _ in range(5):
            assert (await ask(line)).model == "b"
        assert len(first.asked) == 3
        await trio.sleep(30)
        assert (await ask(line)).model == "b"
        assert (await ask(line)).model == "b"
        assert len(first.asked) == 4, "the probe failed: it is out for another while"
        await trio.sleep(30)
        assert (await ask(line)).model == "a"


async def test_failures_of_one_agents_questions_take_no_model_from_others(autojump_clock: MockClock) -> None:
    first = Scripted([[Failing("500")]] * 5 + [["yes"]])

    async with open_line({"p": [first], "q": [Scripted([["yes"]])]}) as line:
        for _ in range(5):
            await ask(line, name="hostile")
        failed = len(first.asked)
        first.scripts = [["yes"]]

        assert (await ask(line, name="other")).model == "a"

    assert failed == 3


async def test_if_all_models_fail_the_reasons_are_told(autojump_clock: MockClock) -> None:
    providers = {"p": [Scripted([[Failing("503 of a")]])], "q": [Scripted([[Failing("503 of b")]])]}

    async with open_line(providers) as line:
        with pytest.raises(Unavailable, match=r"no model of fast answers: a: .*503 of a.*; b: .*503 of b"):
            await ask(line)


async def test_a_model_that_is_paused_is_waited_for_if_the_others_fail(autojump_clock: MockClock) -> None:
    first = Scripted([[RateLimited("429", 20.0)], ["late"]])

    async with open_line({"p": [first], "q": [Scripted([[Failing("503")]])]}) as line:
        thought = await ask(line)

    assert (thought.model, [each.model for each in thought.fallbacks]) == ("a", ["b"])


async def test_every_attempt_is_charged(tmp_path: Path) -> None:
    broken: Sequence[Step] = [Delta("12345678"), Failing("broke off")]
    prices = {"a": Price(1.0, 1.0), "b": Price(100.0, 100.0)}
    spent: list[tuple[int, int | None]] = []

    async with open_database(tmp_path / "db", {"quotas": budgets.TABLES}) as database:
        accounts = await Budgets.load(prices, database, 100, 0.0)
        async with open_line({"p": [Scripted([broken])], "q": [Scripted([["yes"]])]}, TWO, accounts) as line:
            line.on_use = lambda name, model, calls, used, cost: spent.append((used.total, cost))
            thought = await line.think(path("x", make_quotas(60.0, tokens=1000)), replace(question(), model="fast"))
            [state] = line.budget_states(path("x", make_quotas(60.0, tokens=1000)))

    assert thought.model == "b"
    assert state.settled == sum(tokens for tokens, _ in spent) > thought.answer.usage.total
    assert [cost for _, cost in spent] == [spent[0][0] * 1000, spent[1][0] * 100_000]


async def test_budgets_judge_each_model_of_an_alias(tmp_path: Path) -> None:
    prices = {"b": Price(1.0, 1.0)}
    money = make_quotas(60.0, money=1.0)

    async with open_database(tmp_path / "db", {"quotas": budgets.TABLES}) as database:
        accounts = await Budgets.load(prices, database, 100, 0.0)
        async with open_line({"p": [Scripted()], "q": [Scripted([["yes"]])]}, TWO, accounts) as line:
            thought = await line.think(path("x", money), replace(question(), model="fast"))
            with pytest.raises(QuotaExceeded):
                await line.think(path("y", make_quotas(60.0, tokens=0)), replace(question(), model="fast"))

    assert thought.model == "b"
    assert thought.fallbacks == [Fallback("a", "model: 'a' has no price, and the money of 'x' is limited")]


async def test_budgets_judge_the_next_model_when_its_turn_comes(tmp_path: Path) -> None:
    prices = {"a": Price(10.0, 10.0), "b": Price(0.5, 0.5)}
    money = make_quotas(86400.0, money=0.00106)  # enough for one answer of the first model
    thoughts: list[ThinkResult] = []

    async with open_database(tmp_path / "db", {"quotas": budgets.TABLES}) as database:
        accounts = await Budgets.load(prices, database, 100, 0.0)
        providers = {"p": [Scripted([[0.1, "x" * 40]])], "q": [Scripted([["yes"]])]}
        async with open_line(providers, TWO, accounts) as line, trio.open_nursery() as nursery:

            async def put() -> None:
                thoughts.append(await line.think(path("x", money), replace(question(), model="fast")))

            for _ in range(3):
                nursery.start_soon(put)

    assert sorted(thought.model for thought in thoughts) == ["a", "b", "b"]
    for thought in thoughts:
        assert [each.model for each in thought.fallbacks] == (["a"] if thought.model == "b" else [])
        assert all("money" in each.reason for each in thought.fallbacks)


async def test_if_budgets_refuse_the_last_model_that_is_the_answer(tmp_path: Path) -> None:
    tokens = make_quotas(86400.0, tokens=10)  # the first model uses 7, the second needs 6

    async with open_database(tmp_path / "db", {"quotas": budgets.TABLES}) as database:
        accounts = await Budgets.load({}, database, 100, 0.0)
        providers = {"p": [Scripted([[0.1, Delta("12345678"), Failing("503")]])], "q": [Scripted([["yes"]])]}
        async with open_line(providers, TWO, accounts) as line:
            with pytest.raises(QuotaExceeded) as refused:
                await line.think(path("x", tokens), replace(question(), model="fast"))

    assert "no model of fast" not in str(refused.value)


async def test_a_model_that_can_not_do_what_is_asked_is_passed_over(autojump_clock: MockClock) -> None:
    settings = replace(TWO, limits={"a": ModelLimits(lacks=("images",))})
    image = replace(question(), model="fast", messages=[Message("user", "look", images=[Image(b"1", "image/png")])])

    async with open_line({"p": [Scripted()], "q": [Scripted([["yes"]])]}, settings) as line:
        seen = await line.think(path("x"), image)
        with pytest.raises(BadRequest, match="a takes no images"):
            await line.think(path("x"), replace(image, model="a"))
        assert (await ask(line)).model == "a"

    assert (seen.model, seen.fallbacks) == ("b", [Fallback("a", "model: a takes no images, as [llm.limits] says")])


class Choosy(Scripted):
    def supports(self, question: Question) -> str | None:
        return "calls no tools"


async def test_what_a_provider_does_not_support_goes_to_the_next_one(autojump_clock: MockClock) -> None:
    async with open_line({"p": [Choosy()], "q": [Scripted([["yes"]])]}) as line:
        assert (await ask(line)).fallbacks == [Fallback("a", "model: a calls no tools")]


async def test_a_parameter_that_a_provider_would_leave_out_goes_to_the_next_one(autojump_clock: MockClock) -> None:
    biased = replace(question(), model="fast", sampling=Sampling(logit_bias={"1": 5.0}))
    asked = Scripted([["yes"]])
    kinds: Mapping[str, ProviderName] = {"p": "gemini", "q": "openai"}

    async with open_line({"p": [Scripted()], "q": [asked]}, kinds=kinds) as line:
        thought = await line.think(path("x"), biased)
        with pytest.raises(BadRequest, match=r"logit_bias: the provider of a \(gemini\) can't do this"):
            await line.think(path("x"), replace(biased, model="a"))

    assert (thought.model, [each.model for each in thought.fallbacks]) == ("b", ["a"])


class Embeds(Scripted):
    async def embed(self, question: Question, on_delta: OnDelta) -> Answer:
        answer = await self.answer(question, on_delta)
        return Answer("", Usage(1), "embedded", "e", vectors=[answer.text.encode()])


async def test_vectors_of_one_alias_are_of_one_model(autojump_clock: MockClock) -> None:
    first, other = Embeds([[Failing("503")], ["1234"], [RateLimited("429", 5.0)], ["1234"], HANGS]), Embeds()

    async with open_line({"p": [first], "q": [other]}) as line:
        for seconds in (1.0, 5.0):  # a retry, and a pause
            began = trio.current_time()
            thought = await line.think(path("x"), replace(question(), model="fast", embed=True))
            assert (thought.model, trio.current_time() - began) == ("a", seconds)
        with pytest.raises(Unavailable, match="no model of fast answers: a: "):
            await line.think(path("x"), replace(question(), model="fast", embed=True))

    assert other.asked == []


async def test_embeddings_go_to_a_provider_that_has_them(autojump_clock: MockClock) -> None:
    async with open_line({"p": [Scripted()], "q": [Embeds([["1234"]])]}) as line:
        thought = await line.think(path("x"), replace(question(), model="fast", embed=True))

    assert (thought.model, len(thought.answer.vectors)) == ("b", 1)


async def test_models_that_rules_do_not_allow_are_passed_over(autojump_clock: MockClock) -> None:
    route = Route("fast", ["b"], [Fallback("a", "denied by a rule")])

    async with open_line({"p": [Scripted()], "q": [Scripted([["yes"]])]}) as line:
        thought = await ask(line, route=route)

    assert (thought.model, thought.fallbacks) == ("b", [Fallback("a", "denied by a rule")])


async def test_names_stand_for_aliases_listed_models_patterns_and_models_in_this_order() -> None:
    providers = {**TWO.providers, "r": ProviderSettings("openai", models=("gpt-5", "gpt-*"))}

    async with open_line(
        {"p": [Scripted()], "q": [Scripted()], "r": [Scripted()]}, replace(TWO, providers=providers)
    ) as line:
        assert line.routes.resolve("fast").models == ("a", "b")
        assert line.routes.resolve("gpt-5").models == ("gpt-5",)
        assert line.routes.resolve("gpt-4").models == ("a", "b")
        assert line.routes.resolve("a9").models == ("a9",)
        assert line.routes.names() == ["fast", "a", "b", "gpt-5"]
        assert [line.routes.knows(name) for name in ("fast", "gpt-4", "b2", "unknown")] == [True, True, True, False]
        assert [line.provider_of(name) for name in ("fast", "b2", "gpt-5", "unknown")] == ["p", "q", "r", ""]
        with pytest.raises(NotFound, match="no provider has 'unknown'"):
            await ask(line, "unknown")


async def test_keys_are_used_in_turn_and_each_has_its_own_pause(autojump_clock: MockClock) -> None:
    one, two = Scripted([["1"], ["1"], [RateLimited("429", 50.0)], ["1"]]), Scripted([["2"]])

    async with open_line({"p": [one, two], "q": [Scripted()]}) as line:
        texts = [(await time_of(line, "a")) for _ in range(7)]
        await trio.sleep(60)
        texts.append(await time_of(line, "a"))

    assert [thought.answer.text for thought, _ in texts] == ["1", "2", "1", "2", "2", "2", "2", "1"]
    assert sum(seconds for _, seconds in texts) == 0.0


async def test_a_key_that_is_refused_is_left_to_the_others(autojump_clock: MockClock) -> None:
    async with open_line({"p": [Scripted([[Denied("401")]]), Scripted([["2"]])], "q": [Scripted()]}) as line:
        assert [(await ask(line, "a")).answer.text for _ in range(4)] == ["2"] * 4


async def test_requests_per_minute_are_respected_beforehand(autojump_clock: MockClock) -> None:
    provider = Scripted()

    settings = replace(TWO, limits={"a": ModelLimits(rpm=3)})
    async with open_line({"p": [provider], "q": [Scripted()]}, settings) as line, trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(ask, line, "a", f"agent {number}")

    assert_rate([(at, 1) for at in provider.begun], 3)
    assert provider.begun[-1] - provider.begun[0] == 120.0


async def test_tokens_per_minute_are_respected_beforehand(autojump_clock: MockClock) -> None:
    provider = Scripted([["x" * 40]])  # 50 tokens, as it counts them

    settings = replace(TWO, limits={"a": ModelLimits(tpm=120)})
    async with open_line({"p": [provider], "q": [Scripted()]}, settings) as line, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(ask, line, "a", f"agent {number}")

    assert_rate([(at, 50) for at in provider.begun], 120)
    assert len(provider.begun) == 6


async def test_a_large_question_that_is_withdrawn_or_refused_keeps_no_other_waiting(autojump_clock: MockClock) -> None:
    settings = replace(TWO, limits={"a": ModelLimits(tpm=120)})
    large = replace(question("x" * 440), model="a")
    async with open_line({"p": [Scripted()], "q": [Scripted()]}, settings) as line:
        await ask(line, "a", "other")
        with trio.move_on_after(1.0), pytest.raises(Unavailable, match="after the call's deadline"):
            await line.think(path("large"), large)
        assert (await time_of(line, "a", "other"))[1] == 0.0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.think, path("large"), large)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (await time_of(line, "a", "other"))[1] == 0.0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.think, path("large"), large)
            await wait_all_tasks_blocked()
            assert (await time_of(line, "a", "other"))[1] == 60.0  # room is kept for one that waits


UNCOUNTED = lambda text: Usage()  # noqa: E731 - a provider that counts no tokens: they are estimated


async def test_a_withdrawn_question_is_charged_for_the_room_that_was_kept_for_it(autojump_clock: MockClock) -> None:
    provider = Scripted([["yes"], [1.0, "yes"]], usage=UNCOUNTED)
    settings = replace(TWO, concurrency=1, limits={"a": ModelLimits(tpm=200)})

    async with open_line({"p": [provider], "q": [Scripted()]}, settings) as line, trio.open_nursery() as nursery:

        async def put(name: str, text: str) -> None:
            await line.think(path(name), replace(question(text), model="a"))

        await put("other", "first")
        async with trio.open_nursery() as large:
            large.start_soon(put, "hostile", "x" * 780)  # 199 tokens
            await wait_all_tasks_blocked()
            for text in ("second", "third", "fourth"):
                nursery.start_soon(put, "other", text)
                await wait_all_tasks_blocked()
            large.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        nursery.start_soon(put, "hostile", "small")

    assert provider.asked == ["first", "second", "third", "fourth", "small"]


async def test_an_agent_that_withdraws_large_questions_keeps_others_waiting_half_of_the_time_at_most(
    autojump_clock: MockClock,
) -> None:
    """The others' questions come one at a time, so that the fair queue has nothing to choose from."""
    settings = replace(TWO, limits={"a": ModelLimits(tpm=200)})
    large = replace(question("x" * 780), model="a")
    answered: list[float] = []

    async with open_line({"p": [Scripted(usage=UNCOUNTED)], "q": [Scripted()]}, settings) as line:

        async def withdraw_again_and_again() -> None:
            while True:
                async with trio.open_nursery() as asking:
                    asking.start_soon(line.think, path("hostile"), large)
                    await trio.sleep(20.0)
                    asking.cancel_scope.cancel()

        async def go_on() -> None:
            while True:
                await ask(line, "a", "other")
                answered.append(trio.current_time())
                await trio.sleep(1.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            nursery.start_soon(withdraw_again_and_again)
            await trio.sleep(400.0)
            nursery.cancel_scope.cancel()

    assert len(answered) > 150  # of the 200 that `tpm` allows


async def test_a_question_that_room_was_kept_for_is_charged_once_when_it_is_sent(autojump_clock: MockClock) -> None:
    provider = Scripted([["yes"], ["yes"], [1.0, "yes"]], usage=UNCOUNTED)
    settings = replace(TWO, concurrency=1, limits={"a": ModelLimits(tpm=400)})

    async with open_line({"p": [provider], "q": [Scripted()]}, settings) as line, trio.open_nursery() as nursery:

        async def put(name: str, text: str) -> None:
            await line.think(path(name), replace(question(text), model="a"))

        await put("other", "x" * 1000)  # 250 tokens
        await put("large", "x" * 800)  # 200 tokens, which have no room in the same minute
        await trio.sleep(60)
        for name in ("third", "other", "other", "large"):  # the third has the only place when the others begin to wait
            nursery.start_soon(put, name, name)
            await wait_all_tasks_blocked()

    assert provider.begun[1] - provider.begun[0] == 60.0
    assert provider.asked[2:] == ["third", "other", "large", "other"]


def assert_rate(sent: Sequence[tuple[float, int]], most: int) -> None:
    """At most so much within any minute."""
    for begun, _ in sent:
        assert sum(count for at, count in sent if begun <= at < begun + 60) <= most


async def test_an_alias_goes_on_while_a_model_has_had_its_requests_of_the_minute(autojump_clock: MockClock) -> None:
    async with open_line(
        {"p": [Scripted()], "q": [Scripted()]}, replace(TWO, limits={"a": ModelLimits(rpm=2)})
    ) as line:
        asked = [await time_of(line) for _ in range(4)]

    assert [thought.model for thought, _ in asked] == ["a", "a", "b", "b"]
    assert sum(seconds for _, seconds in asked) == 0.0


async def test_each_provider_has_places_of_its_own(autojump_clock: MockClock) -> None:
    providers = {
        "p": replace(TWO.providers["p"], concurrency=1),
        "q": replace(TWO.providers["q"], concurrency=3),
    }
    p, q = Scripted([[1.0, "yes"]]), Scripted([[1.0, "yes"]])

    async with (
        open_line({"p": [p], "q": [q]}, replace(TWO, providers=providers)) as line,
        trio.open_nursery() as nursery,
    ):
        for number in range(3):
            nursery.start_soon(ask, line, "a", f"agent {number}")
            nursery.start_soon(ask, line, "b", f"agent {number}")
        await wait_all_tasks_blocked()
        assert (len(p.begun), len(q.begun), line.in_flight, line.depth) == (1, 3, 4, 2)


@define
class Busy(Scripted):
    """Counts the tokens that each agent got."""

    got: dict[str, int] = field(factory=dict)

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        answer = await Scripted.answer(self, question, on_delta)
        name = question.messages[-1].text
        self.got[name] = self.got.get(name, 0) + answer.usage.input + 2 * answer.usage.generated
        return answer


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_fairness_holds_across_models(concurrency: int, autojump_clock: MockClock) -> None:
    p, q = Busy([[1.0, "yes"]]), Busy([[0.5, "yes, at length"]])
    models = {"first": ("a", "b"), "second": ("fast", "b"), "third": ("b", "fast")}

    async with open_line({"p": [p], "q": [q]}, replace(TWO, concurrency=concurrency)) as line:

        async def flood(name: str, model: str) -> None:
            while True:
                await line.think(path(name), replace(question(name), model=model))

        with trio.move_on_after(80):
            async with trio.open_nursery() as nursery:
                for name, asked in models.items():
                    for model in asked * 4:
                        nursery.start_soon(flood, name, model)

    total = {name: p.got.get(name, 0) + q.got.get(name, 0) for name in p.got | q.got}
    assert len(total) == 3
    assert jain_index(total.values()) >= 0.99


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_classes_hold_across_models(concurrency: int, autojump_clock: MockClock) -> None:
    p, q = Busy([[1.0, "yes"]]), Busy([[0.5, "yes, at length"]])

    async with open_line({"p": [p], "q": [q]}, replace(TWO, concurrency=concurrency)) as line:

        async def flood(class_: LLMClass, model: str) -> None:
            place = (Account("kernel"), Account(class_, Share(class_=class_)))
            while True:
                await line.think(place, replace(question(class_), model=model))

        with trio.move_on_after(240 / concurrency):
            async with trio.open_nursery() as nursery:
                for class_ in CLASS_WEIGHTS:
                    for model in ("a", "b") * 4:
                        nursery.start_soon(flood, class_, model)

    shares = [(p.got.get(class_, 0) + q.got.get(class_, 0)) / weight for class_, weight in CLASS_WEIGHTS.items()]
    assert jain_index(shares) >= 0.99


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_budgets_hold_across_models(concurrency: int, tmp_path: Path) -> None:
    quota = make_quotas(86400.0, tokens=400)
    counted = lambda text: Usage(5, len(text))  # noqa: E731 - as estimated: budgets may be exceeded by errors of that
    liar = Scripted([[Delta("half"), Failing("broke off")], ["yes"], [Failing("503")], HANGS], counted)

    async with open_database(tmp_path / "db", {"quotas": budgets.TABLES}) as database:
        accounts = await Budgets.load({}, database, 20, 0.0)
        settings = replace(TWO, concurrency=concurrency, fallback_after=0.05)
        async with open_line({"p": [liar], "q": [Scripted([[0.001, "yes"]], counted)]}, settings, accounts) as line:
            async with trio.open_nursery() as nursery:

                async def spend() -> None:
                    while True:
                        await line.think(path("x", quota), replace(question(max_tokens=20), model="fast"))

                async def until_refused() -> None:
                    with pytest.raises(QuotaExceeded):
                        await spend()

                for _ in range(4):
                    nursery.start_soon(until_refused)
            [state] = line.budget_states(path("x", quota))

    assert 0 < state.settled <= 400 + 4 * concurrency  # each of two providers exceeds its last grants by 2 tokens
    assert state.reserved == 0


async def test_a_cancelled_question_leaves_nothing_at_any_provider(autojump_clock: MockClock) -> None:
    async with open_line({"p": [Scripted([HANGS])], "q": [Scripted([HANGS])]}) as line:
        for seconds in (1.0, 3.0):
            with trio.move_on_after(seconds):
                await ask(line)
            await wait_all_tasks_blocked()
            assert (line.depth, line.in_flight) == (0, 0)
