"""What a model's state is made of: pauses and breakers of its keys, and its limits per minute."""

import math
from random import Random

import pytest

from agentos.llm.models.model import KeyState, Model, ModelState
from agentos.llm.providers.provider import RateLimited
from agentos.llm.queue.rate_limits import MINUTE, RateLimit
from agentos.llm.settings import ModelLimits, Retry
from tests.support.runs.rows import each_row

RETRY = Retry(first=1.0, jitter=0.0, breaker=1, cooldown=10.0)


def ready() -> KeyState:
    return KeyState(RETRY)


def paused(seconds: float) -> KeyState:
    key = KeyState(RETRY)
    key.record_slow_down(RateLimited("429", seconds), 0.0, Random(1))
    return key


def down(probed_at: float | None = None) -> KeyState:
    key = KeyState(RETRY, reason="500")
    key.breaker.attempt(0.0).failed(0.0)
    if probed_at is not None:
        key.breaker.attempt(probed_at)
    return key


@each_row(
    ("keys", "now", "expected"),
    [
        ([ready()], 0.0, ModelState("m")),
        ([paused(9.0)], 0.0, ModelState("m", "paused", 9.0, "429", 9.0)),
        ([paused(9.0)], 9.0, ModelState("m")),
        ([paused(9.0), paused(5.0)], 0.0, ModelState("m", "paused", 5.0, "429", 5.0)),
        ([paused(9.0), ready()], 0.0, ModelState("m")),
        ([down()], 0.0, ModelState("m", "down", 10.0, "500", 10.0)),
        ([down()], 10.0, ModelState("m", "down", None, "500", None)),  # the next request is the probe
        ([down(10.0)], 10.0, ModelState("m", "down", None, "500", math.inf)),  # it is under way
        ([down(), paused(20.0)], 0.0, ModelState("m", "down", 10.0, "500", 10.0)),
        ([down(10.0), paused(20.0)], 10.0, ModelState("m", "paused", 20.0, "429", 20.0)),
    ],
)
def test_a_model_has_the_state_of_the_key_that_opens_first(
    keys: list[KeyState], now: float, expected: ModelState
) -> None:
    assert Model("m", RETRY, keys).state(now) == expected


@pytest.mark.parametrize(("key", "state"), [(ready(), "limited"), (paused(9.0), "paused"), (down(), "down")])
def test_a_limit_holds_for_all_keys_and_shows_where_nothing_else_keeps_requests_away(key: KeyState, state: str) -> None:
    rate = RateLimit(ModelLimits(rpm=1))
    rate.begin(1, 1, 0.0)

    found = Model("m", RETRY, [key], rate).state(0.0)

    assert (found.state, found.opens_at) == (state, MINUTE)
    assert found.is_unavailable == (state != "limited")
