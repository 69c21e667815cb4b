"""The figures are what the agents saw and the provider served, and nothing else."""

import math

import pytest

from .figures import Log, Outcome, Waits, fairness, figures, percentile
from .simulation.loads import Agent, Kind, Request
from .simulation.simulator import Asked, Fate, Served


def outcome(id: str, asked_at: float, answered_at: float, failure: str | None = None, kind: Kind = "light") -> Outcome:
    return Outcome(Request(Asked(id, 10, 5), id.partition("/")[0], kind), asked_at, answered_at, failure)


def served(id: str, began: float, fate: Fate = "answered", tokens_in: int = 10, tokens_out: int = 5) -> Served:
    return Served(id, tokens_in, began, tokens_out, began + 1, fate)


def test_a_request_has_waited_until_the_answer_that_it_got_was_begun() -> None:
    log = Log([served("a/0", 2.0, "reset"), served("a/0", 5.0)], {})

    got = figures([outcome("a/0", 1.0, 6.0)], log)

    assert got.kinds["light"].waits.p50 == 4.0


def test_tokens_without_a_delivered_answer_are_wasted() -> None:
    log = Log([served("a/0", 2.0, "reset", 10, 3), served("a/0", 5.0), served("b/0", 3.0)], {})

    got = figures([outcome("a/0", 1.0, 6.0), outcome("b/0", 1.0, 4.0, "Timeout")], log)

    assert (got.tokens, got.wasted) == (13 + 15 + 15, 13 + 15)


def test_a_failed_request_has_no_wait_and_is_counted() -> None:
    log = Log([served("a/0", 2.0)], {"429": 3})

    got = figures([outcome("a/0", 1.0, 3.0), outcome("b/0", 1.0, 9.0, "RateLimitError")], log)

    assert (got.asked, got.failed, got.failures, got.refused) == (2, 1, {"RateLimitError": 1}, {"429": 3})
    assert got.kinds["light"].waits == Waits(1.0, 1.0, 1.0)
    assert got.makespan == 8.0


def test_each_kind_has_its_own_figures() -> None:
    log = Log([served("a/0", 2.0), served("b/0", 9.0)], {})

    got = figures([outcome("a/0", 1.0, 3.0), outcome("b/0", 1.0, 10.0, kind="heavy")], log)

    assert {kind: each.waits.p95 for kind, each in got.kinds.items()} == {"light": 1.0, "heavy": 8.0}


@pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.95, 95), (0.99, 99), (0.001, 1)])
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(part: float, value: int) -> None:
    assert percentile(list(range(1, 101)), part) == value


def test_there_is_no_percentile_of_nothing() -> None:
    assert math.isnan(percentile([], 0.5))


def test_fairness_counts_output_twice_and_includes_agents_that_got_nothing() -> None:
    agents = [Agent(name, "light", ()) for name in ("a", "b", "c")]
    log = [served("a/0", 1.0, tokens_in=0, tokens_out=5), served("b/0", 1.0, tokens_in=10, tokens_out=0)]

    assert fairness(agents, log) == pytest.approx(2 / 3)
