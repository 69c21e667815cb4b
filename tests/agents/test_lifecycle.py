import pytest

from agentos.agents.lifecycle import ALIVE, NEXT, State


def test_every_state_has_its_ways() -> None:
    assert set(NEXT) == set(State)


@pytest.mark.parametrize("state", State)
def test_every_state_can_reach_the_end_and_a_new_life(state: State) -> None:
    reached: set[State] = set()
    ahead = {state}
    while ahead:
        reached |= ahead
        ahead = set().union(*(NEXT[one] for one in ahead)) - reached

    assert {State.EXITED, State.STARTING} <= reached


@pytest.mark.parametrize("state", sorted(ALIVE))
def test_who_may_have_a_process_ends_by_exited_only(state: State) -> None:
    assert NEXT[state] - ALIVE == {State.EXITED}
