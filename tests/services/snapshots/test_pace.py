"""A caller that asks for diffs all the time gets a bounded share of the kernel's time."""

import trio
import trio.testing

from agentos.syscalls.operator.overlays import PAUSE, Pace

TOOK = 2.0  # seconds


async def test_after_each_diff_a_caller_waits(autojump_clock: trio.testing.MockClock) -> None:
    pace, began = Pace(), []

    async def diff() -> None:
        async with pace.take_turn():
            began.append(trio.current_time())
            await trio.sleep(TOOK)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(diff)

    assert [at - began[0] for at in began] == [0, TOOK * (1 + PAUSE), 2 * TOOK * (1 + PAUSE)]
