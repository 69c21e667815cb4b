"""The circuit breaker lets exactly one probe through, whatever comes between."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentos.llm.models.circuit_breaker import NEXT, Attempt, CircuitBreaker, State
from agentos.llm.settings import Retry

RETRY = Retry(breaker=3, cooldown=10.0)


def failing(breaker: CircuitBreaker, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        breaker.attempt(now).failed(now)


def half_open() -> tuple[CircuitBreaker, Attempt]:
    breaker = CircuitBreaker(RETRY)
    failing(breaker, 3)
    return breaker, breaker.attempt(10.0)


def test_it_opens_after_so_many_failures_in_a_row_and_says_for_how_long() -> None:
    breaker = CircuitBreaker(RETRY)

    failing(breaker, 2)
    assert breaker.refuses(0.0) is None
    failing(breaker, 1, now=5.0)

    assert breaker.state is State.OPEN
    assert [breaker.refuses(now) for now in (5.0, 8.0, 15.0)] == [10.0, 7.0, None]


def test_a_success_in_between_begins_the_count_anew() -> None:
    breaker = CircuitBreaker(RETRY)

    failing(breaker, 2)
    breaker.attempt(0.0).succeeded()
    failing(breaker, 2)

    assert breaker.state is State.CLOSED


def test_a_withdrawn_attempt_counts_neither_way() -> None:
    breaker = CircuitBreaker(RETRY)

    failing(breaker, 2)
    with breaker.attempt(0.0):
        pass
    failing(breaker, 1)

    assert breaker.state is State.OPEN


def test_once_cool_it_lets_one_attempt_through_and_no_other() -> None:
    breaker, _ = half_open()

    assert breaker.state is State.HALF_OPEN
    assert breaker.refuses(1e9) is not None
    with pytest.raises(ValueError, match="half-open"):
        breaker.attempt(1e9)


def test_a_probe_that_succeeds_lets_all_through_again() -> None:
    breaker, probe = half_open()

    probe.succeeded()

    assert breaker.state is State.CLOSED
    failing(breaker, 2, now=11.0)
    assert breaker.refuses(11.0) is None


def test_a_probe_that_fails_keeps_every_caller_out_for_as_long_again() -> None:
    breaker, probe = half_open()

    probe.failed(12.0)

    assert breaker.state is State.OPEN
    assert breaker.refuses(12.0) == 10.0


def test_a_probe_that_is_cancelled_gives_its_turn_to_the_next_at_once() -> None:
    breaker, probe = half_open()

    with pytest.raises(KeyboardInterrupt), probe:
        raise KeyboardInterrupt

    assert breaker.refuses(10.0) is None
    breaker.attempt(10.0).succeeded()
    assert breaker.state is State.CLOSED


def test_latecomers_neither_open_nor_close_it() -> None:
    breaker = CircuitBreaker(RETRY)
    late = [breaker.attempt(0.0) for _ in range(3)]
    failing(breaker, 3)

    late[0].succeeded()
    assert breaker.refuses(1.0) == 9.0
    probe = breaker.attempt(10.0)
    late[1].failed(10.0)
    with late[2]:
        pass
    assert breaker.refuses(10.0) is not None
    probe.succeeded()
    assert breaker.refuses(10.0) is None


def test_a_turn_ends_once() -> None:
    turn = CircuitBreaker(RETRY).attempt(0.0)
    turn.succeeded()

    with pytest.raises(ValueError, match="ends once"):
        turn.failed(0.0)


def test_every_state_leads_back_to_closed() -> None:
    reached = {State.CLOSED}
    for _ in State:
        reached |= {state for state, events in NEXT.items() if reached & set(events.values())}

    assert reached == set(State) == set(NEXT)


class ABreaker(RuleBasedStateMachine):
    """Many workers at once, in any order, against what is promised."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(RETRY)
        self.now = 0.0
        self.under_way: list[Attempt] = []
        self.probes: list[Attempt] = []
        self.failed_at = -math.inf

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.refuses(self.now) is None)
    @rule()
    def one_more(self) -> None:
        probing = self.breaker.state is State.OPEN
        turn = self.breaker.attempt(self.now)
        self.under_way.append(turn)
        if probing:
            assert self.now >= self.failed_at + RETRY.cooldown
            self.probes.append(turn)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), how=st.sampled_from(["succeeded", "failed", "withdrawn"]))
    def one_ends(self, data: st.DataObject, how: str) -> None:
        turn = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        was_open = self.breaker.state is State.OPEN
        if how == "failed":
            turn.failed(self.now)
        elif how == "succeeded":
            turn.succeeded()
        else:
            turn.__exit__(None, None, None)
        if how == "failed" and not was_open and self.breaker.state is State.OPEN:
            self.failed_at = self.now
        if turn in self.probes:
            self.probes.remove(turn)
            expected = {"succeeded": State.CLOSED, "failed": State.OPEN, "withdrawn": State.OPEN}
            assert self.breaker.state is expected[how]

    @invariant()
    def one_probe_and_only_while_half_open(self) -> None:
        assert len(self.probes) == (self.breaker.state is State.HALF_OPEN)

    @invariant()
    def it_never_refuses_for_good(self) -> None:
        wait = self.breaker.refuses(self.now)
        assert wait is None or 0 < wait <= RETRY.cooldown


TestABreaker = ABreaker.TestCase
