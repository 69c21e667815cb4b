"""What many requests for metrics at once cost."""

import trio
from trio.testing import MockClock

from agentos.telemetry.metrics_endpoint import KEEP_SECONDS, Exposition
from agentos.telemetry.snapshot import Snapshot
from tests.telemetry.test_prometheus import make_snapshot


async def test_one_text_answers_all_requests_of_a_second(autojump_clock: MockClock) -> None:
    taken = 0

    def take() -> Snapshot:
        nonlocal taken
        taken += 1
        return make_snapshot(f"a{taken}")

    exposition = Exposition(take)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(exposition.text, bool(number % 2))
    assert taken == 2

    data, _ = await exposition.text(False)
    await trio.sleep(KEEP_SECONDS)
    later, _ = await exposition.text(False)
    assert taken == 3
    assert b"a3" in later
    assert later != data
