import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisors import Backoff, Exit, IntensityExceeded, SpecError
from supervisors.backoff import delay, failures_after, fastest, reachable
from tests.support.runs.rows import each_row

STEADY = Backoff(jitter=0)
CRASH = Exit("crash")


def plain_delays(backoff: Backoff) -> Iterator[float]:
    """The delays in seconds before the first, second, ... restart, without jitter; endless."""
    yield backoff.first
    delay = backoff.min
    while True:
        yield delay
        delay = min(delay * backoff.factor, backoff.max)


def test_the_first_restart_is_at_once_and_then_delays_grow_up_to_the_maximum() -> None:
    delays = [delay(STEADY, failures, random.Random(1)) for failures in range(1, 12)]

    assert delays == pytest.approx([0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])


def test_a_thousand_failures_do_not_overflow() -> None:
    assert delay(STEADY, 100_000, random.Random(1)) == 30


@given(st.integers(0, 3000), st.floats(0, 0.99), st.integers())
def test_jitter_stays_within_its_fraction(failures: int, jitter: float, seed: int) -> None:
    plain = delay(STEADY, failures, random.Random(0))

    drawn = delay(Backoff(jitter=jitter), failures, random.Random(seed))

    assert plain * (1 - jitter) - 1e-9 <= drawn <= plain * (1 + jitter) + 1e-9


def test_the_same_seed_gives_the_same_delays() -> None:
    one, two = random.Random(7), random.Random(7)

    assert [delay(Backoff(), n, one) for n in range(9)] == [delay(Backoff(), n, two) for n in range(9)]


@given(st.floats(0, 5), st.floats(0, 5), st.floats(1, 5), st.floats(5, 50))
def test_the_two_ways_to_tell_a_delay_agree(first: float, least: float, factor: float, most: float) -> None:
    backoff = Backoff(first=first, min=least, factor=factor, max=most, jitter=0)

    listed = list(itertools.islice(plain_delays(backoff), 12))

    assert [delay(backoff, failures, random.Random(1)) for failures in range(1, 13)] == pytest.approx(listed)


@each_row(
    ("failures", "ending", "uptime", "expected"),
    [
        (0, CRASH, 1, 1),
        (3, CRASH, 1, 4),
        (3, CRASH, 60, 1),  # twice max is healthy
        (3, Exit("normal"), 1, 3),
        (3, Exit("shutdown"), 1, 3),
        (3, Exit("shutdown"), 60, 0),
        (3, Exit("shutdown", IntensityExceeded("a", CRASH, 2, 5)), 1, 4),
        (3, Exit("killed"), 1, 4),
    ],
)
def test_failures_in_a_row_are_counted(failures: int, ending: Exit, uptime: float, expected: int) -> None:
    assert failures_after(STEADY, failures, ending, uptime) == expected


def test_reset_after_replaces_twice_the_maximum() -> None:
    assert failures_after(Backoff(reset_after=3), 5, CRASH, 3) == 1


@given(
    st.floats(0, 10), st.floats(0, 5), st.floats(1, 10), st.floats(1, 100), st.integers(1, 60), st.floats(0.01, 1000)
)
def test_what_is_reachable_agrees_with_adding_the_delays_up(
    first: float, least: float, factor: float, times: float, restarts: int, period: float
) -> None:
    backoff = Backoff(first=first, min=least, factor=factor, max=least * times, jitter=0)
    sums = [0.0, *itertools.accumulate(itertools.islice(plain_delays(backoff), restarts))]

    assert fastest(backoff, restarts) == pytest.approx(sums[restarts - 1], rel=1e-6)
    if all(abs(total - period) > 1e-6 * (1 + total) for total in sums):
        assert reachable(backoff, period, restarts) == sum(total <= period for total in sums) - 1


def test_an_intensity_of_a_hundred_million_is_judged_at_once() -> None:
    assert fastest(Backoff(first=0, min=0, max=0), 100_000_000) == 0
    assert reachable(STEADY, 60, 100_000_000) == 9


def test_the_fastest_restarts_are_those_with_the_shortest_jitter() -> None:
    backoff = Backoff(first=1, min=2, factor=2, max=30, jitter=0.5)

    assert fastest(backoff, 1) == 0
    assert fastest(backoff, 4) == pytest.approx((1 + 2 + 4) / 2)
    assert reachable(backoff, 3.5, 9) == 3
    assert reachable(backoff, 3.4, 9) == 2


@each_row(
    "wrong",
    [
        {"first": -1},
        {"min": 5, "max": 4},
        {"factor": 0.5},
        {"jitter": 1},
        {"max": float("inf")},
        {"first": float("nan")},
        {"reset_after": 0},
        {"max_failures": 0},
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError) as refused:
        Backoff(**wrong)  # type: ignore[arg-type]

    assert refused.value.code == "invalid_backoff"


def test_a_backoff_may_give_up_at_the_first_failure_and_have_no_delay_at_all() -> None:
    made = Backoff(first=0, min=0, factor=1, max=0, jitter=0, reset_after=0.1, max_failures=1)

    assert delay(made, 9, random.Random(1)) == 0
    assert failures_after(made, 0, CRASH, 0) == made.max_failures
