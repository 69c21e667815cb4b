"""How fast a server's messages are read: a burst at once, then so many in a second; long ones count as several."""

import pytest
import trio
from trio.testing import MockClock

from agentos.mcp.pace import BURST, MESSAGE_BYTES, PER_SECOND, Pace

SECOND = PER_SECOND // 2  # messages of this size; each counts as two


async def read(pace: Pace, messages: int) -> float:
    """The seconds that messages of :data:`MESSAGE_BYTES` are waited for."""
    began = trio.current_time()
    for _ in range(messages):
        await pace.wait(MESSAGE_BYTES)
    return trio.current_time() - began


async def test_what_comes_faster_than_its_pace_waits_behind_a_burst(autojump_clock: MockClock) -> None:
    pace = Pace()

    assert await read(pace, BURST // 2) == 0
    assert await read(pace, SECOND) == pytest.approx(1)


async def test_what_is_quiet_has_no_more_than_a_burst_again(autojump_clock: MockClock) -> None:
    pace = Pace()
    await read(pace, BURST // 2)

    await trio.sleep(0.5)
    assert await read(pace, SECOND) == pytest.approx(0.5)
    await trio.sleep(1000)
    assert await read(pace, BURST // 2 + SECOND) == pytest.approx(1)
