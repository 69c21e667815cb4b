"""A model that fails repeatedly is out for a while, then probed by one question."""

import contextlib

import pytest

from agentos.llm.models.outages import DURATION, FAILURES, MAX_KEPT, WINDOW, Outages
from agentos.llm.providers.provider import Denied, Failing, Rejected, Unforeseen

MODEL = "large"


def attempt(outages: Outages, account: str, now: float, error: BaseException | None = None, model: str = MODEL) -> None:
    try:
        with outages.attempt(model, account, lambda: now):
            if error is not None:
                raise error
    except BaseException as raised:
        assert raised is error


def fail(outages: Outages, account: str, *times: float) -> None:
    for now in times:
        attempt(outages, account, now, Failing("down"))


@pytest.mark.parametrize("error", [Failing("down"), Denied("no credit", status=402)])
def test_three_failures_within_the_window_take_a_model_out_for_a_while(error: Exception) -> None:
    outages = Outages()
    for now in (0.0, WINDOW / 2, WINDOW):
        assert not outages.is_out(MODEL, "one", now)
        attempt(outages, "one", now, error)

    assert outages.is_out(MODEL, "one", WINDOW)
    assert outages.is_out(MODEL, "one", WINDOW + DURATION - 0.1)
    assert not outages.is_out(MODEL, "one", WINDOW + DURATION)
    assert not outages.is_out("small", "one", WINDOW)


def test_failures_further_apart_than_the_window_do_not() -> None:
    outages = Outages()
    fail(outages, "one", 0.0, 1.0, WINDOW + 0.1)

    assert not outages.is_out(MODEL, "one", WINDOW + 0.1)


@pytest.mark.parametrize("error", [Rejected("no such field"), Unforeseen("answered a page")])
def test_an_answer_that_comes_the_same_each_time_is_no_outage(error: Exception) -> None:
    outages = Outages()
    for now in range(2 * FAILURES):
        attempt(outages, "one", now, error)

    assert not outages.is_out(MODEL, "one", 2 * FAILURES)


@pytest.mark.parametrize("rejected", [False, True])
def test_one_question_probes_and_its_answer_or_rejection_shows_that_the_model_is_back(rejected: bool) -> None:
    outages = Outages()
    fail(outages, "one", 0.0, 1.0, 2.0)
    back = 2.0 + DURATION
    with contextlib.suppress(Rejected), outages.attempt(MODEL, "one", lambda: back):
        assert outages.is_out(MODEL, "one", back)  # for all but the probe
        if rejected:
            raise Rejected("no such field")

    fail(outages, "one", back, back)
    assert not outages.is_out(MODEL, "one", back)


def test_a_probe_that_fails_takes_the_model_out_again_and_a_cancelled_one_leaves_the_next_to_probe() -> None:
    outages = Outages()
    fail(outages, "one", 0.0, 1.0, 2.0)
    attempt(outages, "one", 2.0 + DURATION, KeyboardInterrupt())
    assert not outages.is_out(MODEL, "one", 2.0 + DURATION)

    fail(outages, "one", 2.0 + DURATION)
    assert outages.is_out(MODEL, "one", 2.0 + 2 * DURATION - 0.1)
    assert not outages.is_out(MODEL, "one", 2.0 + 2 * DURATION)


def test_what_one_account_alone_meets_takes_no_model_from_others() -> None:
    outages = Outages()
    fail(outages, "one", *[float(now) for now in range(10)])

    assert outages.is_out(MODEL, "one", 10.0)
    assert not outages.is_out(MODEL, "other", 10.0)


def test_failures_of_several_accounts_in_turn_take_it_from_all() -> None:
    outages = Outages()
    for now, account in enumerate(["one", "two", "one", "two"]):
        fail(outages, account, float(now))

    assert outages.is_out(MODEL, "a third", 3.0)


def test_the_oldest_outages_are_forgotten_when_there_are_too_many() -> None:
    outages = Outages()
    fail(outages, "one", 0.0, 1.0, 2.0)
    for number in range(MAX_KEPT):
        attempt(outages, "one", 3.0, Failing("down"), f"model-{number}")

    assert not outages.is_out(MODEL, "one", 3.0)
