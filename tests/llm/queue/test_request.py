"""The states of a request: each leads to an end, in whatever state its caller leaves it."""

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.llm.providers.provider import Delta, Failing
from agentos.llm.queue import request as module
from agentos.llm.queue.request import ENDED, NEXT, WITH_SLOT, Request, State
from agentos.llm.settings import LLMSettings, Retry
from tests.llm.scripted import Scripted, Step, question
from tests.llm.test_line import open_line, queue_path


def test_every_state_leads_to_an_end_and_none_leads_out_of_it() -> None:
    reaching = set(ENDED)
    for _ in State:
        reaching |= {state for state, following in NEXT.items() if following & reaching}

    assert reaching == set(State) == set(NEXT)
    assert not any(NEXT[state] for state in ENDED)


def test_a_slot_is_got_by_admission_and_budget_settled_before_it_is_left() -> None:
    outside = set(State) - WITH_SLOT
    assert [state for state in outside if NEXT[state] & WITH_SLOT] == [State.QUEUED]
    assert {state for state in WITH_SLOT if NEXT[state] & outside} == {State.ADMITTED}


def test_the_drawing_names_each_state() -> None:
    drawing = (module.__doc__ or "").split("\n\n")[1]

    assert all(state.value in drawing for state in State)


async def test_a_change_that_the_table_lacks_is_refused() -> None:
    request = Request(question(), queue_path("a"))
    request.end(None)

    with pytest.raises(ValueError, match="a request that is settled can't be queued"):
        request.enter(State.QUEUED)


PIECE = Delta("it")
LEFT: dict[State, list[Step]] = {
    State.SENT: [math.inf],
    State.STREAMING: [PIECE, math.inf],
    State.DEFERRED: [Failing("500")],
}


@pytest.mark.parametrize("left_in", [State.QUEUED, *LEFT])
async def test_a_request_withdrawn_in_any_state_leaves_nothing_behind(
    left_in: State, autojump_clock: MockClock
) -> None:
    provider = Scripted([LEFT.get(left_in, [math.inf]), [1.0, "yes"]])
    settings = LLMSettings(retry=Retry(first=100.0))

    async with open_line(provider, settings) as line, trio.open_nursery() as nursery:
        if left_in is State.QUEUED:
            nursery.start_soon(line.think, queue_path("ahead"), question())
            await wait_all_tasks_blocked()
        with trio.CancelScope() as leaving:

            async def leave() -> None:
                await wait_all_tasks_blocked()
                [*_, request] = line._requests
                assert request.state is left_in
                leaving.cancel()

            nursery.start_soon(leave)
            await line.think(queue_path("a"), question())
        assert line.depth == 0
        assert line.in_flight == (left_in is State.QUEUED)
        assert len(line._requests) == line.in_flight
        nursery.cancel_scope.cancel()
