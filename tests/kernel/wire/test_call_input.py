"""CHUNK frames that a client sends to a call in flight: what waits is bounded, and other tasks run meanwhile."""

import trio

from agentos.kernel.call import MAX_UNREAD_BYTES, Input
from agentos.kernel.caller import Allowance


def test_short_frames_fill_it_too() -> None:
    allowance = Allowance()
    given = Input(allowance)
    count = 0
    while given.has_room:
        given.put(b"{}")
        count += 1
    assert 1000 < count < 10_000
    assert allowance.requests >= MAX_UNREAD_BYTES
    given.close()
    assert allowance.requests == 0


async def test_frames_that_wait_are_taken_one_by_one() -> None:
    allowance, taken = Allowance(), 0
    given = Input(allowance)
    for _ in range(100):
        given.put(b"{}")

    async def take_all() -> None:
        nonlocal taken
        while True:
            await given.take()
            taken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_all)
        await trio.lowlevel.checkpoint()
        assert taken <= 1
        while taken < 100:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert allowance.requests == 0
