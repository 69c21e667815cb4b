import contextlib
import itertools
import math
import time
from random import Random

import pytest
import trio
from attrs import evolve
from msgspec.structs import replace
from trio.testing import MockClock

from agentos.llm.ask import ProviderClient, seconds_until
from agentos.llm.models.provider_models import MAX_MODELS
from agentos.llm.providers.provider import (
    Answer,
    Delta,
    Denied,
    Failing,
    MalformedCall,
    NoJSON,
    Provider,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
    Unforeseen,
)
from agentos.llm.queue.claims import measure_request
from agentos.llm.queue.request import Request, State
from agentos.llm.settings import Account, Retry, Timeouts
from agentos.services.events import Event, ModelAvailable, ModelPaused
from agentos_sdk.errors import BadRequest, Timeout, Unavailable
from agentos_sdk.values import Usage
from tests.llm.scripted import Scripted, Step, question

RETRY = Retry(attempts=3, first=1.0, factor=2.0, max=8.0, jitter=0.0, patience=60.0, breaker=5, cooldown=10.0)
TIMES = Timeouts()

numbers = itertools.count()


def asking(provider: Scripted, retry: Retry = RETRY, timeouts: Timeouts = TIMES) -> ProviderClient:
    async def connect() -> Provider:
        return provider

    return ProviderClient(connect, retry, timeouts, Random(1))


def asked(said: list[str] | None = None, model: str = "scripted") -> Request:
    put = replace(question(), model=model)
    return request(put, f"agent {next(numbers)}", said)


def request(put: Question, account: str, said: list[str] | None = None) -> Request:
    """One that has a slot."""
    on_text = said.append if said is not None else None
    return Request(put, (Account(account),), on_text, state=State.ADMITTED, input=7, size=measure_request(put))


async def ask(*scripts: list[Step], one: Request | None = None, **more: object) -> tuple[Scripted, Answer]:
    provider = Scripted(scripts)
    return provider, await asking(provider, **more).send(one or asked())  # type: ignore[arg-type]


async def test_what_failed_is_asked_again_with_growing_pauses(autojump_clock: MockClock) -> None:
    one = asked()

    provider, answer = await ask([Failing("500")], [Failing("502")], ["well"], one=one)

    assert answer.text == "well"
    assert [later - provider.begun[0] for later in provider.begun] == [0.0, 1.0, 3.0]
    assert (one.attempts, one.total_usage) == (3, Usage(10, 4))


async def test_it_fails_when_the_last_attempt_has(autojump_clock: MockClock) -> None:
    provider = Scripted([[Failing("500 Internal")]])

    with pytest.raises(Unavailable, match=r"500 Internal \(asked 3 times\)"):
        await asking(provider).send(asked())

    assert len(provider.asked) == 3


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Rejected("no such model"), BadRequest),
        (Denied("GEMINI_API_KEY was refused"), Unavailable),
        (Unforeseen("answered a page: Sign in"), Unavailable),
    ],
)
async def test_what_would_fail_again_is_asked_once(error: Exception, told: type[Exception]) -> None:
    provider, one = Scripted([[error]]), asked()

    with pytest.raises(told, match=str(error)):
        await asking(provider).send(one)

    assert len(provider.asked) == 1
    assert one.total_usage == Usage()


@pytest.mark.parametrize("error", [MalformedCall("it"), NoJSON("it wrote no JSON object")], ids=["call", "text"])
async def test_what_is_no_json_is_asked_for_once_more_and_charged(
    autojump_clock: MockClock, error: ProviderError
) -> None:
    provider, one = Scripted([["look", error]]), asked()

    with pytest.raises(Unavailable, match="no JSON object") as caught:
        await asking(provider).send(one)

    assert len(provider.asked) == 2
    assert caught.value.details == {"retry": False, "tokens": one.total_usage.total}
    assert one.total_usage.input == 2 * 7


async def test_told_to_slow_down_it_waits_as_long_as_it_was_told_and_counts_no_attempt(
    autojump_clock: MockClock,
) -> None:
    scripts: list[list[Step]] = [[RateLimited("429", 9.0)]] * 4
    provider, answer = await ask(*scripts, ["at last"])

    assert answer.text == "at last"
    assert all(later - earlier >= 9.0 for earlier, later in zip(provider.begun, provider.begun[1:], strict=False))


async def test_while_a_model_is_paused_no_question_for_it_is_put_and_others_are(autojump_clock: MockClock) -> None:
    provider = Scripted([[RateLimited("429", 9.0)], ["yes"]])
    way, began = asking(provider), trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.send, asked())
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(way.send, asked())
        await way.send(asked(model="another"))

        assert trio.current_time() == began
        assert (way.models.state("scripted").opens_at or 0) - began >= 9.0

    assert [at - began for at in provider.begun] == [0.0, 0.0, 9.0, 9.0]


async def test_a_pause_that_is_too_long_fails_at_once_for_the_second_question_too(autojump_clock: MockClock) -> None:
    provider = Scripted([[RateLimited("429", 3600.0)]])
    way, began = asking(provider), trio.current_time()

    for number in range(2):
        with pytest.raises(
            Unavailable, match=r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC.*after retry.patience.*429"
        ) as caught:
            await way.send(asked())
        assert caught.value.details["upstream_status"] == 429
        assert number or len(provider.asked) == 1

    assert (len(provider.asked), trio.current_time()) == (1, began)


async def test_a_pause_beyond_the_deadline_of_the_call_fails_at_once(autojump_clock: MockClock) -> None:
    way, began = asking(Scripted([[RateLimited("429", 50.0)]])), trio.current_time()
    one = asked()
    one.deadline = began + 49.0

    with pytest.raises(Unavailable, match="after the call's deadline"):
        await way.send(one)

    assert trio.current_time() == began


async def test_models_that_agents_invent_leave_nothing_behind_without_end(autojump_clock: MockClock) -> None:
    way = asking(Scripted([[RateLimited("429", 3600.0)]]))

    for number in range(MAX_MODELS + 50):
        with pytest.raises(Unavailable):
            await way.send(asked(model=f"invented-{number}"))

    assert len(way.models.unavailable()) == MAX_MODELS
    answered = asking(Scripted([[Rejected("404")]]))
    with pytest.raises(BadRequest):
        await answered.send(asked(model="unknown"))
    assert not answered.models.kept


async def test_patience_with_a_provider_that_never_has_time_ends(autojump_clock: MockClock) -> None:
    provider = Scripted([[RateLimited("429 too many requests")]])
    began = trio.current_time()

    with pytest.raises(Unavailable, match="429 too many requests"):
        await asking(provider).send(asked())

    assert 40 < trio.current_time() - began <= RETRY.patience


async def test_a_new_question_goes_on_at_the_pace_that_the_last_one_was_told(autojump_clock: MockClock) -> None:
    provider = Scripted([[RateLimited("429")]] * 3 + [[Rejected("400")], [RateLimited("429")], ["yes"]])
    way = asking(provider)
    with pytest.raises(BadRequest):
        await way.send(asked())

    await way.send(asked())

    assert provider.begun[5] - provider.begun[4] == pytest.approx(8.0)  # not the first pause, of 1 s


async def test_a_provider_that_does_not_begin_is_left_and_asked_again(autojump_clock: MockClock) -> None:
    one = asked()

    provider, answer = await ask([math.inf], ["yes"], one=one, timeouts=Timeouts(connect=1, first_token=4, idle=2))

    assert answer.text == "yes"
    assert provider.aborted == [provider.begun[0] + 4.0]
    assert one.total_usage == Usage(10 + 7, 3)  # it took the question, and will want its input paid


ACCEPTED = Delta(accepted=True)


@pytest.mark.parametrize(
    ("script", "charged"),
    [
        ([Failing("503")], 0),
        ([ACCEPTED, Failing("broke off")], 7),
        ([ACCEPTED, RateLimited("429 in the stream")], 0),
        ([ACCEPTED, Rejected("refused in the stream")], 0),
    ],
)
async def test_an_accepted_attempt_that_breaks_off_costs_its_input(script: list[Step], charged: int) -> None:
    one = asked()

    with pytest.raises((Unavailable, BadRequest)):
        await asking(Scripted([script]), Retry(attempts=1, patience=0.0)).send(one)

    assert one.total_usage == Usage(charged)


async def test_what_is_no_piece_of_an_answer_leaves_the_time_for_the_first_one_as_it_is(
    autojump_clock: MockClock,
) -> None:
    times = Timeouts(connect=1, first_token=4, idle=2)

    provider, answer = await ask([ACCEPTED, Delta(), 3.5, "late"], timeouts=times)
    assert answer.text == "late"

    provider, answer = await ask([ACCEPTED, 3.5, Delta(begun=True), 1.5, "thought over"], timeouts=times)
    assert answer.text == "thought over"

    events: list[Step] = [1.5, Delta(usage=Usage(7))]
    provider, answer = await ask([ACCEPTED, *events * 3, "later"], ["yes"], timeouts=times)
    assert answer.text == "yes"
    assert provider.aborted == [provider.begun[0] + 4.0]


async def test_a_provider_that_stops_in_the_middle_is_left_and_asked_again(autojump_clock: MockClock) -> None:
    times = Timeouts(connect=1, first_token=4, idle=2)

    provider, answer = await ask(["be", 1.5, "gin", 1.5, "ning", 3.0], ["all of it"], timeouts=times)

    assert answer.text == "all of it"
    assert provider.aborted == [provider.begun[0] + 5.0]


async def test_an_answer_that_takes_too_long_in_all_is_a_timeout(autojump_clock: MockClock) -> None:
    with pytest.raises(Timeout, match="60 s"):
        await ask(["more", 5.0] * 100, timeouts=Timeouts(idle=10, total=60))


async def test_a_question_with_a_partly_delivered_answer_is_not_asked_again(autojump_clock: MockClock) -> None:
    provider, heard = Scripted([["once upon", Failing("broke off")], ["another"]]), list[str]()
    one = asked(heard)

    with pytest.raises(Unavailable, match="broke off"):
        await asking(provider).send(one)

    assert heard == ["once upon"]
    assert one.total_usage == Usage(7, 3)


async def test_an_aborted_question_costs_its_input_and_what_had_arrived(autojump_clock: MockClock) -> None:
    provider, one = Scripted([["12345678", Delta(unseen=40), math.inf]]), asked()

    with trio.move_on_after(1):
        await asking(provider).send(one)

    assert one.total_usage == Usage(7, 2, 10)


async def test_the_provider_s_own_count_goes_before_what_was_guessed(autojump_clock: MockClock) -> None:
    provider, one = Scripted([["1234", Delta(usage=Usage(70, 30, 5)), math.inf]]), asked()

    with trio.move_on_after(1):
        await asking(provider).send(one)

    assert one.total_usage == Usage(70, 30, 5)


async def test_input_that_was_counted_before_an_abort_is_charged_as_counted(autojump_clock: MockClock) -> None:
    counted = Usage(70, cache_read=60, cache_creation=5)
    provider, one = Scripted([[Delta(usage=counted), "1234", Delta(unseen=40), math.inf]]), asked()

    with trio.move_on_after(1):
        await asking(provider).send(one)

    assert one.total_usage == Usage(70, 1, 10, 60, 5)


ONCE = Retry(attempts=1, breaker=5, cooldown=10.0)


async def fail(way: ProviderClient, *questions: Request) -> None:
    for one in questions:
        with pytest.raises(Unavailable):
            await way.send(one)


async def test_a_provider_that_fails_for_every_caller_is_left_alone_until_it_has_cooled_down(
    autojump_clock: MockClock,
) -> None:
    provider = Scripted([*[[Failing("500")]] * 5, ["back"]])
    way = asking(provider, ONCE)
    await fail(way, *(asked() for _ in range(5)))
    with pytest.raises(Unavailable, match="5 times in a row, the last time: 500: try again in 10 s"):
        way.models.check(asked())
    await fail(way, asked())
    assert len(provider.asked) == 5

    await trio.sleep(10)
    way.models.check(asked())
    answer = await way.send(asked())

    assert answer.text == "back"


async def test_the_failures_of_one_party_alone_keep_no_other_party_out(autojump_clock: MockClock) -> None:
    way = asking(Scripted([[Failing("500")]]), ONCE)

    await fail(way, *(request(question(), "the same") for _ in range(20)))

    way.models.check(asked())


async def test_an_answer_that_breaks_off_does_not_mean_that_the_provider_is_away(autojump_clock: MockClock) -> None:
    way = asking(Scripted([["it is", Failing("odd")]]), ONCE)

    await fail(way, *(asked() for _ in range(20)))

    way.models.check(asked())


async def test_a_provider_that_does_not_stop_is_stopped(autojump_clock: MockClock) -> None:
    provider = Scripted([["more " * 10, 0.1] * 1000])
    one = request(question(max_tokens=10), "a")

    with pytest.raises(BadRequest, match="its answer is longer than"):
        await asking(provider).send(one)

    assert len(provider.aborted) == 1
    assert one.total_usage.output < 200


async def test_pauses_after_a_failure_are_given_to_others(autojump_clock: MockClock) -> None:
    pauses: list[float] = []

    async def defer(seconds: float) -> None:
        pauses.append(seconds)

    await asking(Scripted([[Failing("500")], [Failing("500")], ["yes"]])).send(asked(), defer=defer)

    assert pauses == [1.0, 2.0]


async def test_what_can_not_be_connected_is_tried_anew_with_the_next_question() -> None:
    attempts: list[str] = []

    async def connect() -> Provider:
        attempts.append("once more")
        if len(attempts) == 1:
            raise Denied("set GEMINI_API_KEY")
        return Scripted()

    way = ProviderClient(connect, RETRY, Timeouts())
    with pytest.raises(Unavailable, match="set GEMINI_API_KEY"):
        await way.send(asked())

    assert (await way.send(asked())).text == "yes"


@pytest.mark.parametrize("counted", [Usage(), Usage(0, 2), Usage(9, 0)])
async def test_what_the_provider_has_not_counted_is_guessed(counted: Usage, autojump_clock: MockClock) -> None:
    one = asked()
    provider = Scripted([["12345678"]], usage=lambda text: counted)

    await asking(provider).send(one)

    assert one.total_usage == Usage(counted.input or 7, 2)


async def test_a_question_that_comes_while_the_sdk_is_loaded_waits_for_it() -> None:
    loaded, attempts = trio.Event(), list[str]()

    async def connect() -> Provider:
        attempts.append("once")
        await loaded.wait()
        return Scripted()

    way, answers = ProviderClient(connect, RETRY, Timeouts()), list[str]()

    async def ask() -> None:
        answers.append((await way.send(asked())).text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.prepare)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        loaded.set()

    assert (answers, attempts) == (["yes"], ["once"])


async def test_what_can_not_be_loaded_ahead_is_tried_anew_with_the_first_question() -> None:
    attempts: list[str] = []

    async def connect() -> Provider:
        attempts.append("once more")
        if len(attempts) == 1:
            raise Failing("the SDK can't be loaded")
        return Scripted()

    way = ProviderClient(connect, RETRY, Timeouts())
    await way.prepare()

    assert (await way.send(asked())).text == "yes"


async def test_pauses_of_a_model_and_their_ends_are_published_when_they_happen(autojump_clock: MockClock) -> None:
    published, provider = list[tuple[float, Event]](), Scripted([[RateLimited("429", 9.0)]] * 2 + [["yes"]])
    way = asking(provider)
    began, at = trio.current_time(), time.time()
    way.models.publish = lambda event: published.append((round(trio.current_time() - began, 3), event))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.models.serve)
        await way.send(asked())
        nursery.cancel_scope.cancel()

    assert [at for at, _ in published] == [0.0, 9.0, 9.0, 18.0]
    first, end, second, last = (event for _, event in published)
    assert isinstance(first, ModelPaused)
    assert isinstance(second, ModelPaused)
    assert (first.provider, first.model, first.reason) == ("none", "scripted", "429")
    assert at + 9 <= first.until <= time.time() + 9
    assert end == last == ModelAvailable("none", "scripted")


async def test_a_model_whose_provider_fails_is_available_again_when_it_has_answered(autojump_clock: MockClock) -> None:
    published, provider = list[Event](), Scripted([[Failing("500")]] * 6 + [["yes"]])
    way = asking(provider, evolve(RETRY, attempts=1))
    way.models.publish = published.append

    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.models.serve)
        for _ in range(7):
            with contextlib.suppress(Unavailable):
                await way.send(asked())
            if published:
                await trio.sleep(RETRY.cooldown)
        nursery.cancel_scope.cancel()

    assert [type(event) for event in published] == [ModelPaused, ModelPaused, ModelAvailable]


@pytest.mark.parametrize(("opens", "seconds"), [(-1.0, 0.0), (0.0, 0.0), (2.5, 2.5)])
async def test_a_model_that_has_opened_while_it_was_looked_at_is_waited_for_no_longer(
    opens: float, seconds: float, autojump_clock: MockClock
) -> None:
    await trio.sleep(5)
    assert seconds_until(trio.current_time() + opens) == seconds
