"""Progress of a tool's call, as its client hears it."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked


class Client:
    def __init__(self) -> None:
        self.reports: list[tuple[float, str]] = []

    async def report(self, progress: float, message: str) -> None:
        await trio.lowlevel.checkpoint()
        self.reports.append((progress, message))


async def test_output_at_the_end_of_a_call_is_reported() -> None:
    from agentos.userland.mcp.performing import reporting

    client = Client()

    async with reporting(client.report) as progress:
        await wait_all_tasks_blocked()
        progress.add("the end")

    assert client.reports == [(1, "the end")]


async def test_text_that_comes_during_a_report_is_reported_after_it(autojump_clock: trio.testing.MockClock) -> None:
    from agentos.userland.mcp.performing import MIN_INTERVAL, reporting

    client = Client()

    async with reporting(client.report) as progress:
        progress.add("one")
        await trio.sleep(MIN_INTERVAL / 2)
        progress.add("two")
        progress.add("three")

    assert client.reports == [(1, "one"), (2, "twothree")]


async def test_a_failed_call_raises_its_error_alone() -> None:
    from agentos.userland.mcp.performing import reporting

    with pytest.raises(ValueError, match="wrong"):
        async with reporting(Client().report):
            raise ValueError("wrong")


async def test_a_silent_call_is_reported_every_five_seconds(autojump_clock: trio.testing.MockClock) -> None:
    from agentos.userland.mcp.performing import reporting

    client = Client()

    async with reporting(client.report):
        await trio.sleep(11)

    assert client.reports == [(1, "still running after 5 s"), (2, "still running after 10 s")]
