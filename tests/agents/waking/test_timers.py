"""Timers: what is due, once, whatever the wall clock does; with clocks of their own."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio
import trio.testing
from attrs import define, field
from msgspec.structs import replace

from agentos.agents.registry import Agent, Registry
from agentos.agents.tree.tracker import Tracker
from agentos.agents.waking import last_runs
from agentos.agents.waking.last_runs import LastRuns
from agentos.agents.waking.schedule import Schedule
from agentos.agents.waking.timers import LOOK, Timers
from agentos.agents.waking.turns import MAX_STARTING, SLOW_SECONDS
from agentos.database import Database, open_database
from agentos.services.events import AgentSpawned, AgentWaiting, ConfigReloaded, Event, RunSkipped
from agentos_sdk.encoding.codec import decode
from agentos_sdk.errors import Unavailable
from tests.agents.test_registry import agent

HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def schedule(**fields: Any) -> Schedule:
    return decode(Schedule, {**({"timezone": "Europe/Berlin"} if "cron" in fields else {}), **fields})


@define
class Host:
    """One host over several kernels: its wall clock, which can be set, and what its agents were woken at.

    A run takes ``length`` seconds.
    """

    place: Path
    clock: trio.testing.MockClock
    now: float  # when Trio's clock showed the time that is in `base`
    base: float = 0.0
    length: float = 0.0
    ran: list[tuple[str, float]] = field(factory=list)
    published: list[Event] = field(factory=list)
    problem: Unavailable | None = None
    look: float = math.inf
    database: Database | None = None

    def read_clock(self) -> float:
        return self.now + trio.current_time() - self.base

    def set_clock(self, now: float) -> None:
        self.now, self.base = now, trio.current_time()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass from one deadline to the next, each time until all has happened that is due then.

        Not by an autojump clock: that would jump while the database's thread writes.
        """
        end = trio.current_time() + seconds
        while True:
            assert self.database is not None
            await trio.testing.wait_all_tasks_blocked()
            await self.database.write(lambda connection: None)  # after what was queued before
            await trio.testing.wait_all_tasks_blocked()
            if (left := end - trio.current_time()) <= 0:
                return
            self.clock.jump(min(left, max(0.0, trio.lowlevel.current_statistics().seconds_to_next_deadline)))

    @property
    def times(self) -> list[str]:
        """When runs began, in Berlin."""
        return [f"{datetime.fromtimestamp(when, BERLIN):%m-%d %H:%M:%S}" for _, when in self.ran]

    @asynccontextmanager
    async def kernel(self, *agents: Agent) -> AsyncIterator[Timers]:
        """Run the timers of these agents as a kernel does, until the block ends: as suddenly as a kernel is killed."""
        registry = Registry(self.published.append)
        tracker, begun = Tracker(registry), trio.Event()
        async with open_database(self.place / "db", {"last_runs": last_runs.TABLES}) as database:
            self.database = database
            timers = Timers(
                registry,
                await LastRuns.load(database),
                self._start(tracker),
                begun,
                self.read_clock,
                self.look,
                Random(1),
            )
            for one in agents:
                tracker.add_agent(one, one.path)
                tracker.rest(one)
            begun.set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(timers.serve)
                await self.pass_time(0)
                yield timers
                await self.pass_time(0)
                nursery.cancel_scope.cancel()

    def _start(self, tracker: Tracker) -> Callable[[Agent, str], Any]:
        async def wake(one: Agent, reason: str) -> None:
            assert reason == "schedule"
            if self.problem is not None:
                raise self.problem
            self.ran.append((one.name, self.read_clock()))
            one.renew()
            tracker.registry.change(one, AgentSpawned(one.id, one.name))
            await trio.sleep(self.length)
            tracker.finish(one)

        return wake


def declared(name: str = "nightly", **fields: Any) -> Agent:
    one = agent(name, schedule=schedule(**fields), restart="transient")
    one.spawner = None
    return one


async def test_an_agent_runs_at_each_of_its_times(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    host, one = Host(tmp_path, mock_clock, at("2026-11-26 12:00")), declared(cron="0 3 * * 1-5")

    async with host.kernel(one):
        assert one.next_at == at("2026-11-27 03:00")
        await host.pass_time(5 * DAY)

    assert host.times == ["11-27 03:00:00", "11-30 03:00:00", "12-01 03:00:00"]
    assert one.next_at == at("2026-12-02 03:00")


async def test_many_agents_share_one_heap(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    host = Host(tmp_path, mock_clock, 1e9)
    agents = [declared(f"a{number}", every=f"{number}s") for number in (7, 3, 5)]

    async with host.kernel(*agents):
        await host.pass_time(15.5)

    ran = sorted((round(when - 1e9), name) for name, when in host.ran)
    assert ran == sorted((due, f"a{every}") for every in (3, 5, 7) for due in range(every, 16, every))


async def test_a_run_that_is_due_while_the_last_one_works_is_left_out_and_said(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one = Host(tmp_path, mock_clock, 1e9, length=100.0), declared(every="1m")

    async with host.kernel(one):
        await host.pass_time(185)

    assert [when - 1e9 for _, when in host.ran] == [60, 180]
    skipped = [event for event in host.published if isinstance(event, RunSkipped)]
    assert skipped == [RunSkipped(one.id, "nightly", 1e9 + 120, 1e9 + 180)]


@pytest.mark.parametrize(("runs", "told"), [(1, [1]), (3, [1, 2]), (1000, [1 << number for number in range(10)])])
async def test_a_run_that_goes_on_is_told_less_and_less(
    tmp_path: Path, mock_clock: trio.testing.MockClock, runs: int, told: list[int]
) -> None:
    host = Host(tmp_path, mock_clock, 1e9, length=runs + 1.5)

    async with host.kernel(declared(every="1s")):
        await host.pass_time(runs + 1.2)

    assert [event.skipped for event in host.published if isinstance(event, RunSkipped)] == told


async def test_a_missed_time_is_caught_up_once_by_the_next_kernel(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host = Host(tmp_path, mock_clock, at("2026-11-26 12:00"))
    fields: dict[str, Any] = {"cron": "0 3 * * *"}
    async with host.kernel(declared("keen", **fields, catch_up=True), declared("calm", **fields)):
        pass
    host.set_clock(at("2026-11-29 08:00"))

    async with host.kernel(declared("keen", **fields, catch_up=True), declared("calm", **fields)):
        pass
    async with host.kernel(declared("keen", **fields, catch_up=True), declared("calm", **fields)):
        await host.pass_time(12 * HOUR)

    assert [name for name, _ in host.ran] == ["keen"]
    assert host.times == ["11-29 08:00:00"]


async def test_of_many_that_catch_up_few_start_at_a_time_each_once_and_slow_ones_hold_up_none(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host = Host(tmp_path, mock_clock, at("2026-11-26 12:00"))

    def fleet() -> list[Agent]:
        return [declared(f"a{number}", every="1h", catch_up=True) for number in range(2 * MAX_STARTING + 1)]

    async with host.kernel(*fleet()):
        pass
    host.set_clock(at("2026-11-29 08:30"))
    host.length = 600.0

    async with host.kernel(*fleet()):
        started = [len(host.ran)]
        for _ in range(2):
            await host.pass_time(SLOW_SECONDS)
            started.append(len(host.ran))

    assert started == [MAX_STARTING, 2 * MAX_STARTING, 2 * MAX_STARTING + 1]
    assert len({name for name, _ in host.ran}) == started[-1]


async def test_a_run_that_is_due_while_the_last_one_waits_for_its_turn_is_left_out(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host = Host(tmp_path, mock_clock, 1e9, length=0.7)
    agents = [declared(f"a{number}", every="1s") for number in range(5 * MAX_STARTING)]

    async with host.kernel(*agents):
        await host.pass_time(10.5)

    assert len(host.ran) <= 10.5 / 0.7 * MAX_STARTING
    assert {name for name, _ in host.ran} == {one.name for one in agents}
    assert max(event.skipped for event in host.published if isinstance(event, RunSkipped)) > 1


async def test_a_kernel_that_is_killed_at_the_minute_runs_it_once(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host = Host(tmp_path, mock_clock, at("2026-11-27 02:59:59"))
    fields: dict[str, Any] = {"cron": "0 3 * * *", "catch_up": True}

    async with host.kernel(declared(**fields)):
        pass  # killed a second before
    host.set_clock(at("2026-11-27 03:00:20"))
    async with host.kernel(declared(**fields)):
        pass  # killed in its run
    async with host.kernel(declared(**fields)):
        await host.pass_time(HOUR)

    assert host.times == ["11-27 03:00:20"]


async def test_an_interval_counts_over_kernels(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    host = Host(tmp_path, mock_clock, 1e9)

    for _ in range(8):
        async with host.kernel(declared(every="1h")):
            await host.pass_time(HOUR / 4 + 1)

    assert [round(when - 1e9) for _, when in host.ran] == [3600, 7200]


async def test_a_clock_that_is_set_back_a_little_repeats_no_time_of_the_day(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one = Host(tmp_path, mock_clock, at("2026-11-27 02:50")), declared(cron="0 3 * * *")

    host.look = LOOK
    async with host.kernel(one):
        await host.pass_time(HOUR)
        host.set_clock(at("2026-11-27 02:30"))
        await host.pass_time(2 * HOUR)

    assert host.times == ["11-27 03:00:00"]
    assert one.next_at == at("2026-11-28 03:00")


async def test_a_clock_that_was_wrong_by_years_is_believed_when_it_is_corrected(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one, often = (
        Host(tmp_path, mock_clock, at("2030-01-01 02:50")),
        declared(cron="0 3 * * *"),
        declared("o", every="1h"),
    )

    host.look = LOOK
    async with host.kernel(one, often):
        await host.pass_time(2 * HOUR)
        host.set_clock(at("2026-11-27 02:00"))
        await host.pass_time(1.5 * HOUR)

    assert [run for run in zip([name for name, _ in host.ran], host.times, strict=True) if run[0] == "nightly"] == [
        ("nightly", "01-01 03:00:00"),
        ("nightly", "11-27 03:00:00"),
    ]
    last = host.ran[-1]
    assert last[0] == "o"
    assert last[1] <= at("2026-11-27 02:00") + HOUR + LOOK


async def test_a_clock_that_is_set_forward_over_several_times_runs_once(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one = Host(tmp_path, mock_clock, at("2026-11-26 12:00")), declared(cron="0 3 * * *")

    host.look = LOOK
    async with host.kernel(one):
        host.set_clock(at("2026-11-29 12:00"))
        await host.pass_time(LOOK + 1)

    assert len(host.ran) == 1
    assert one.next_at == at("2026-11-30 03:00")


async def test_a_night_in_which_the_clock_changes_has_one_run(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, spring = Host(tmp_path, mock_clock, at("2026-03-28 12:00")), declared(cron="30 2 * * *")
    async with host.kernel(spring):
        await host.pass_time(1.5 * DAY)
    host.set_clock(at("2026-10-24 12:00"))
    async with host.kernel(declared("autumn", cron="30 2 * * *")):
        await host.pass_time(1.5 * DAY)

    assert host.times == ["03-29 03:00:00", "10-25 02:30:00"]


async def test_jitter_is_drawn_for_each_run_and_stays_below_its_bound(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host = Host(tmp_path, mock_clock, 1e9)

    async with host.kernel(declared(every="1h", jitter="10m")):
        await host.pass_time(20 * HOUR)

    late = [(when - 1e9) % HOUR for _, when in host.ran]
    assert len(late) == 19 or len(late) == 20
    assert all(0 <= one <= 600 for one in late)
    assert len(set(late)) > 10


async def test_a_stopped_agent_has_no_next_time_and_catches_nothing_up(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one = Host(tmp_path, mock_clock, at("2026-11-26 12:00")), declared(cron="0 3 * * *", catch_up=True)
    one.wish.stop("operator")

    async with host.kernel(one) as timers:
        assert one.due_at is None
        timers.wake = refuse_stopped(timers.wake)
        await host.pass_time(DAY)
        one.wish.release()
        assert one.due_at == at("2026-11-28 03:00")

    assert host.ran == []


def refuse_stopped(wake: Callable[[Agent, str], Any]) -> Callable[[Agent, str], Any]:
    """As START's owner: nothing is done for a stopped agent."""

    async def other(one: Agent, reason: str) -> None:
        if one.wish.stopped_by is None:
            await wake(one, reason)

    return other


async def test_a_reload_changes_a_schedule_takes_it_away_and_adds_one(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one, other = Host(tmp_path, mock_clock, 1e9), declared("one", every="1h"), declared("other", every="1h")

    async with host.kernel(one, other) as timers:
        one.spec, other.spec = replace(one.spec, schedule=schedule(every="10s")), replace(other.spec, schedule=None)
        timers.take_event(ConfigReloaded([]))
        await host.pass_time(25)
        assert (one.next_at, other.next_at) == (1e9 + 30, None)
        await host.pass_time(2 * HOUR)

    assert {name for name, _ in host.ran} == {"one"}
    assert [when - 1e9 for _, when in host.ran[:2]] == [10, 20]


async def test_an_agent_that_cannot_be_started_is_tried_at_its_next_time(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one = Host(tmp_path, mock_clock, 1e9), declared(every="1m")
    host.problem = Unavailable("its group is ending")

    async with host.kernel(one):
        await host.pass_time(70)
        host.problem = None
        await host.pass_time(60)

    assert [when - 1e9 for _, when in host.ran] == [120]


async def test_an_agent_whose_group_was_not_up_runs_when_it_is(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    host, one = Host(tmp_path, mock_clock, 1e9), declared(every="1h")
    host.problem = Unavailable("its group isn't up")

    async with host.kernel(one) as timers:
        await host.pass_time(HOUR + 1)
        host.problem = None
        await host.pass_time(100)
        assert host.ran == []
        timers.take_event(AgentWaiting(one.id, one.name))  # as its container has it when the group is up
        await host.pass_time(1)

    assert [round(when - 1e9) for _, when in host.ran] == [3701]
