"""Retry delays stay within what was asked for, and are never shorter than the provider says."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.llm.retry import MAX_RETRY_AFTER, retry_delay
from agentos.llm.settings import Retry

SECONDS = st.just(0.0) | st.floats(1e-3, 1e4)
RETRIES = st.builds(
    Retry, first=SECONDS, factor=st.floats(1, 1e3), max=SECONDS, jitter=st.floats(0, 0.99), cooldown=SECONDS
)
ATTEMPTS = st.integers(1, 10**6)
RANDOM = st.randoms(use_true_random=True)
ALMOST = 1e-9  # a product may be rounded


@given(RETRIES, ATTEMPTS, RANDOM)
def test_a_pause_is_within_its_jitter_and_never_longer_than_the_longest(
    retry: Retry, attempt: int, random: Random
) -> None:
    plain = retry_delay(Retry(first=retry.first, factor=retry.factor, max=retry.max, jitter=0), attempt, None, random)

    assert 0 <= plain <= retry.max
    assert abs(retry_delay(retry, attempt, None, random) - plain) <= plain * (retry.jitter + ALMOST)


@given(RETRIES, ATTEMPTS, RANDOM)
def test_pauses_without_jitter_grow_by_the_factor_until_the_longest(retry: Retry, attempt: int, random: Random) -> None:
    steady = Retry(first=retry.first, factor=retry.factor, max=retry.max, jitter=0)

    this, following = (retry_delay(steady, number, None, random) for number in (attempt, attempt + 1))

    assert following == pytest.approx(min(this * retry.factor, retry.max), rel=1e-6, abs=1e-9)


def test_pauses_double_from_the_first() -> None:
    retry = Retry(first=0.5, factor=2, max=3, jitter=0)

    assert [retry_delay(retry, attempt, None, Random(0)) for attempt in (1, 2, 3, 4, 5)] == pytest.approx(
        [0.5, 1, 2, 3, 3]
    )


@given(RETRIES, ATTEMPTS, st.floats(-1e6, math.inf), RANDOM)
def test_no_retry_is_earlier_than_the_provider_said(retry: Retry, attempt: int, after: float, random: Random) -> None:
    waited = retry_delay(retry, attempt, after, random)

    assert waited >= min(after, MAX_RETRY_AFTER)
    assert waited <= max(retry.max, MAX_RETRY_AFTER) * (1 + retry.jitter + ALMOST)


@given(RETRIES, ATTEMPTS, st.floats(-1e6, 1e6), st.integers())
def test_a_provider_that_names_a_time_does_not_make_the_pause_shorter(
    retry: Retry, attempt: int, after: float, seed: int
) -> None:
    without = retry_delay(
        Retry(first=retry.first, factor=retry.factor, max=retry.max, jitter=0), attempt, None, Random(seed)
    )

    assert retry_delay(retry, attempt, after, Random(seed)) >= without


@pytest.mark.parametrize("after", [1e9, math.inf])
def test_an_absurdly_long_time_is_obeyed_as_far_as_the_stated_cap(after: float) -> None:
    assert MAX_RETRY_AFTER <= retry_delay(Retry(jitter=0.25), 1, after, Random(1)) <= MAX_RETRY_AFTER * 1.25


def test_a_time_that_is_no_number_is_as_if_there_were_none() -> None:
    assert retry_delay(Retry(), 1, math.nan, Random(1)) == retry_delay(Retry(), 1, None, Random(1))


def test_the_jitter_spreads_callers_that_were_told_the_same_time() -> None:
    random = Random(7)

    waits = [retry_delay(Retry(), 1, 10.0, random) for _ in range(100)]

    assert min(waits) < 10.5
    assert max(waits) > 12.0


def test_the_same_seed_gives_the_same_pauses() -> None:
    first, second = Random(3), Random(3)

    assert [retry_delay(Retry(), n, None, first) for n in range(1, 9)] == [
        retry_delay(Retry(), n, None, second) for n in range(1, 9)
    ]
