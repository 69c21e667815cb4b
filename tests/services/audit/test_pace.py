"""Who announces acts in a loop waits for its turn: not less than it may, not longer than it must, and alone."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from agentos.services.audit.pace import INTENTS_PER_SECOND, MAX_BURST, MIN_PRUNE_CALLERS, IntentPacer


async def took(pace: IntentPacer, caller: int, acts: int) -> float:
    begun = trio.current_time()
    for _ in range(acts):
        await pace.wait_turn(str(caller))
    return trio.current_time() - begun


async def test_no_agent_announces_more_than_a_burst_and_then_so_many_a_second(autojump_clock: MockClock) -> None:
    pace = IntentPacer()

    assert await took(pace, 7, MAX_BURST) == pytest.approx(0)
    assert await took(pace, 7, 500) == pytest.approx(500 / INTENTS_PER_SECOND)
    await trio.sleep(2)
    assert await took(pace, 7, int(2 * INTENTS_PER_SECOND)) == pytest.approx(0)
    await trio.sleep(3600)
    assert await took(pace, 7, MAX_BURST + 1) == pytest.approx(1 / INTENTS_PER_SECOND)


async def test_no_caller_waits_for_what_another_announces(autojump_clock: MockClock) -> None:
    pace = IntentPacer(burst=2, rate=0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(took, pace, 7, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert await took(pace, 8, 2) == pytest.approx(0)
        nursery.cancel_scope.cancel()


async def test_calls_of_one_caller_do_not_overtake_each_other(autojump_clock: MockClock) -> None:
    pace, order = IntentPacer(burst=1, rate=1.0), list[int]()

    async def one(number: int) -> None:
        await pace.wait_turn("7")
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(one, number)
            await trio.testing.wait_all_tasks_blocked()

    assert order == list(range(10))


async def test_what_was_cancelled_does_not_make_the_next_wait_longer(autojump_clock: MockClock) -> None:
    pace = IntentPacer(burst=1, rate=0.1)
    await pace.wait_turn("7")

    for _ in range(100):
        with trio.move_on_after(0.01):
            await pace.wait_turn("7")

    assert await took(pace, 7, 1) == pytest.approx(9)


async def test_callers_that_have_gone_do_not_pile_up(autojump_clock: MockClock) -> None:
    pace = IntentPacer(burst=2, rate=1.0)

    for caller in range(10_000):
        await pace.wait_turn(str(caller))
        await trio.sleep(0.1)

    assert len(pace) <= MIN_PRUNE_CALLERS


async def test_a_waiting_caller_is_not_forgotten_and_gets_no_second_burst(autojump_clock: MockClock) -> None:
    pace = IntentPacer(burst=1, rate=0.001)
    await pace.wait_turn("7")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(took, pace, 7, 1)
        for caller in range(100, 1000):
            await pace.wait_turn(str(caller))
            await trio.sleep(0.01)
        with trio.move_on_after(1) as patience:
            await pace.wait_turn("7")
        assert patience.cancelled_caught
        nursery.cancel_scope.cancel()
