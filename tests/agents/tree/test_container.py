"""Containers below a real supervisor; what they contain is a program that the test makes crash."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, field

from agentos.agents.life.life import wait_first
from agentos.agents.tree.container import BackgroundStart, Container, Group, specify_one_child
from supervisors import Backoff, ChildSpec, Ended, GaveUp, Ignore, Report, Supervisor, SupervisorSpec
from supervisors.reports import ChildEnded, RestartScheduled

Wait = Callable[[], Awaitable[None]]
START = 0.2  # seconds until a program is up


@define(eq=False)
class Program:
    """``failing`` of its starts fail; ``over`` is how its present life ends, once it is set."""

    failing: int = 0
    begun: list[float] = field(factory=list)  # trio's clock: when each life began
    up: list[float] = field(factory=list)  # ... and came up
    crashed: trio.Event = field(factory=trio.Event)
    done: trio.Event = field(factory=trio.Event)
    stopped: int = 0

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        self.begun.append(trio.current_time())
        await trio.sleep(START)
        if len(self.begun) <= self.failing:
            raise OSError("no such file")
        self.up.append(trio.current_time())
        task_status.started()
        self.crashed = trio.Event()
        await wait_first(stop.wait, self.crashed.wait, self.done.wait)
        if stop.is_set():
            self.stopped += 1
            raise Ended("shutdown")
        if self.crashed.is_set():
            raise Ended("crash")

    async def crash(self) -> None:
        """Let it crash, and wait until it is up again."""
        lives = len(self.up)
        self.crashed.set()
        while len(self.up) == lives:
            await trio.sleep(START / 10)


def contained(
    name: str,
    program: Any,
    *,
    intensity: int = 1,
    escalates: bool = False,
    told: list[Report] | None = None,
    restart: Any = "permanent",
    backoff: Backoff | None = None,
    wait: Wait = trio.lowlevel.checkpoint,
    **more: Any,
) -> ChildSpec:
    one = specify_one_child(name, BackgroundStart(program, wait), restart, backoff, intensity, 60)
    observe = told.append if told is not None else lambda report: None
    return ChildSpec(name, Container(("root", name), one, escalates, observe), restart="transient", **more)


@asynccontextmanager
async def open_supervisor(*children: ChildSpec, **more: Any) -> AsyncIterator[Supervisor]:
    """A supervisor with these children; on return it has been stopped."""
    async with trio.open_nursery() as nursery:
        supervisor: Supervisor = await nursery.start(Supervisor(SupervisorSpec(children, **more)).run)
        yield supervisor
        supervisor.stop()


def states(supervisor: Supervisor) -> dict[str, str]:
    return {info.id: info.state for info in supervisor.children()}


async def test_starts_overlap(autojump_clock: object) -> None:
    programs = [Program() for _ in range(100)]
    began = trio.current_time()

    async with open_supervisor(*(contained(f"a{number}", program) for number, program in enumerate(programs))):
        await trio.sleep(2 * START)

        assert [program.up for program in programs] == [[pytest.approx(began + START)]] * 100


async def test_a_healthy_child_comes_back_at_once_beside_crash_loopers(autojump_clock: object) -> None:
    loopers, healthy = [Program(failing=10**6) for _ in range(30)], Program()
    specs = [contained(f"loop{number}", looper, intensity=1000) for number, looper in enumerate(loopers)]

    async with open_supervisor(contained("healthy", healthy), *specs):
        await trio.sleep(2)
        began = trio.current_time()
        await healthy.crash()

        assert trio.current_time() - began < 2 * START
        assert all(len(looper.begun) > 5 for looper in loopers)


async def test_one_that_cannot_start_is_given_up_and_the_others_do_not_notice(autojump_clock: object) -> None:
    bad, good = Program(failing=10**6), Program()

    async with open_supervisor(contained("bad", bad, intensity=2), contained("good", good), intensity=0) as above:
        await trio.sleep(10)

        assert len(bad.begun) == 3
        assert states(above) == {"bad": "stopped", "good": "running"}
        assert len(good.begun) == 1


async def test_the_first_failed_start_is_a_crash_and_waits_for_its_backoff(autojump_clock: object) -> None:
    program, told = Program(failing=2), list[Report]()
    backoff = Backoff(first=1, min=3, jitter=0)

    async with open_supervisor(contained("a", program, intensity=5, backoff=backoff, told=told)):
        await trio.sleep(10)

        gaps = [later - sooner - START for sooner, later in zip(program.begun, program.begun[1:], strict=False)]
        assert gaps == pytest.approx([1, 3])
        assert [report.attempt for report in told if isinstance(report, RestartScheduled)] == [1, 2]
        assert [report.exit.reason for report in told if isinstance(report, ChildEnded)] == ["crash", "crash"]
        assert len(program.up) == 1


async def test_one_that_was_given_up_can_be_started_again(autojump_clock: object) -> None:
    program = Program(failing=2)

    async with open_supervisor(contained("a", program, intensity=1)) as above:
        await trio.sleep(5)
        assert states(above) == {"a": "stopped"}

        await above.restart_child("a")
        await trio.sleep(2 * START)

        assert states(above) == {"a": "running"}
        assert len(program.up) == 1
        await program.crash()  # its limits begin anew
        assert states(above) == {"a": "running"}


async def test_one_that_was_terminated_can_be_started_again(autojump_clock: object) -> None:
    program = Program()

    async with open_supervisor(contained("a", program)) as above:
        await trio.sleep(1)
        await above.terminate_child("a")
        assert (states(above), program.stopped) == ({"a": "stopped"}, 1)

        await above.restart_child("a")
        await trio.sleep(1)

        assert len(program.up) == 2


async def test_an_escalation_is_counted_by_the_supervisor_above(autojump_clock: object) -> None:
    bad, good = Program(failing=10**6), Program()
    spec = SupervisorSpec(
        [contained("bad", bad, intensity=2, escalates=True), contained("good", good)], intensity=1, period=60
    )
    above = Supervisor(spec)

    with pytest.raises(GaveUp, match="2 restarts in 60 s were needed; the last for 'bad'"):
        await above.run()

    assert len(bad.begun) == 2 * 3  # the second escalation is one too many
    assert good.stopped == 1


@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_a_child_that_is_done_leaves_its_spec_behind(autojump_clock: object, restart: str) -> None:
    program = Program()

    async with open_supervisor(contained("job", program, restart=restart)) as above:
        await trio.sleep(1)
        program.done.set()
        await trio.sleep(1)

        assert len(program.begun) == 1
        assert states(above) == {"job": "stopped"}


async def test_a_child_that_declines_is_done(autojump_clock: object) -> None:
    class Brief:
        async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
            async with trio.open_nursery():  # as the life of an agent: the exception comes in a group
                raise Ignore

    told = list[Report]()
    async with open_supervisor(contained("brief", Brief(), restart="transient", told=told)) as above:
        await trio.sleep(1)

        assert states(above) == {"brief": "stopped"}
        [end] = [report for report in told if isinstance(report, ChildEnded)]
        assert end.exit.reason == "normal"


@pytest.mark.parametrize(("failing", "how"), [(10**6, "was given up"), (0, "has ended")])
async def test_a_significant_container_takes_its_supervisor_along(
    autojump_clock: object, failing: int, how: str
) -> None:
    program, other = Program(failing), Program()
    spec = SupervisorSpec(
        [contained("job", program, restart="transient", significant=True), contained("other", other)],
        auto_shutdown="any_significant",
    )
    above = Supervisor(spec)

    async with trio.open_nursery() as nursery:
        await nursery.start(above.run)
        program.done.set()
        with trio.fail_after(10):
            ending = await above.wait()

    assert ending.reason == "shutdown", how
    assert other.stopped == 1


async def test_a_stop_breaks_a_start_off(autojump_clock: object) -> None:
    class Slow:
        async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
            await trio.sleep_forever()

    began = trio.current_time()
    async with open_supervisor(contained("slow", Slow())):
        await trio.sleep(1)

    assert trio.current_time() - began == pytest.approx(1)


async def test_containers_stop_in_reverse_order_each_when_the_one_before_has_stopped(autojump_clock: object) -> None:
    ends: list[tuple[str, float]] = []

    @define
    class Slow:
        name: str

        async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            await stop.wait()
            await trio.sleep(1)
            ends.append((self.name, trio.current_time()))
            raise Ended("shutdown")

    async with open_supervisor(*(contained(name, Slow(name)) for name in "abc")):
        await trio.sleep(1)
        began = trio.current_time()

    assert [name for name, _ in ends] == ["c", "b", "a"]
    assert [at - began for _, at in ends] == pytest.approx([1, 2, 3])


def group(
    name: str,
    members: list[ChildSpec],
    intensity: int = 1,
    strategy: Any = "rest_for_one",
    restart: Any = "permanent",
    escalates: bool = False,
    wait: Wait = trio.lowlevel.checkpoint,
) -> ChildSpec:
    """A group in a container."""
    spec = SupervisorSpec(members, strategy=strategy, intensity=1, period=60)
    inside = Group(("root", name), spec, lambda report: None, lambda supervisor: None, wait)
    one = specify_one_child(name, inside, restart, None, intensity, 60)
    return ChildSpec(name, Container(("root", name), one, escalates, lambda report: None), restart="transient")


async def test_a_group_starts_its_members_in_order_while_others_start_beside_it(autojump_clock: object) -> None:
    a, b, beside = Program(), Program(), Program()
    began = trio.current_time()

    async with open_supervisor(group("g", [ChildSpec("a", a), ChildSpec("b", b)]), contained("beside", beside)):
        await trio.sleep(1)

        assert [each.up[0] - began for each in (a, b, beside)] == pytest.approx([START, 2 * START, START])


async def test_a_group_whose_member_cannot_start_is_given_up_alone(autojump_clock: object) -> None:
    a, bad, beside = Program(), Program(failing=10**6), Program()

    async with open_supervisor(
        group("g", [ChildSpec("a", a), ChildSpec("bad", bad)], intensity=2), contained("beside", beside), intensity=0
    ) as above:
        await trio.sleep(10)

        assert states(above) == {"g": "stopped", "beside": "running"}
        assert (len(a.begun), a.stopped, len(bad.begun), len(beside.begun)) == (3, 3, 3, 1)


async def test_a_group_that_is_stopped_during_its_start_stops_what_is_up(autojump_clock: object) -> None:
    a, b = Program(), Program()

    async with open_supervisor(group("g", [ChildSpec("a", a), ChildSpec("b", b)])):
        await trio.sleep(1.5 * START)

    assert (a.stopped, b.begun != [], b.up) == (1, True, [])


async def test_agents_and_groups_begin_when_what_they_wait_for_has_come(autojump_clock: object) -> None:
    a, b, come = Program(), Program(), trio.Event()
    waiting = [contained("a", a, wait=come.wait), group("g", [ChildSpec("b", b)], wait=come.wait)]

    async with open_supervisor(*waiting) as above:
        await trio.sleep(10)
        assert (a.begun, b.begun, states(above)) == ([], [], {"a": "running", "g": "running"})

        come.set()
        await trio.sleep(2 * START)
        assert (len(a.up), len(b.up)) == (1, 1)


async def test_what_declines_to_start_begins_no_life(autojump_clock: object) -> None:
    program, declined = Program(), [True]
    one = specify_one_child("a", BackgroundStart(program, trio.lowlevel.checkpoint), "permanent", None, 1, 60)
    container = Container(("root", "a"), one, False, lambda report: None, declined.pop)

    async with open_supervisor(ChildSpec("a", container, restart="transient")) as above:
        await trio.sleep(1)
        assert (program.begun, states(above)) == ([], {"a": "stopped"})


async def test_a_container_has_a_group_only_while_it_runs(autojump_clock: object) -> None:
    spec = group("g", [ChildSpec("bad", Program(failing=10**6))], intensity=0)
    container = spec.start
    assert isinstance(container, Container)

    async with open_supervisor(spec):
        await trio.sleep(START / 2)
        assert container.group is not None
        await trio.sleep(10)
        assert container.group is None


async def test_a_group_restart_above_starts_all_below_anew(autojump_clock: object) -> None:
    crashing, failed, healthy = Program(), Program(failing=2), Program()
    inner = group("inner", [contained("failed", failed), contained("healthy", healthy)], strategy="one_for_one")

    async with open_supervisor(ChildSpec("first", crashing), inner, strategy="rest_for_one") as above:
        await trio.sleep(5)
        assert (len(failed.begun), failed.up) == (2, [])

        await crashing.crash()
        await trio.sleep(1)

        assert states(above) == {"first": "running", "inner": "running"}
        assert (len(failed.up), len(healthy.up), healthy.stopped) == (1, 2, 1)


@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
async def test_a_group_that_gives_up_escalates_whatever_its_restart(autojump_clock: object, restart: str) -> None:
    program = Program()
    spec = group("g", [ChildSpec("a", program)], intensity=0, restart=restart, escalates=True)
    above = Supervisor(SupervisorSpec([spec], intensity=0))

    async with trio.open_nursery() as nursery:
        await nursery.start(_run_until_it_gives_up, above)
        await trio.sleep(1)
        await program.crash()
        assert above.exit is None
        program.crashed.set()  # once more than the group forgives

    assert above.exit is not None
    assert "1 restarts in 5 s were needed; the last for 'g'" in str(above.exit)
    assert len(program.up) == 2


async def _run_until_it_gives_up(supervisor: Supervisor, *, task_status: trio.TaskStatus[Any]) -> None:
    with pytest.raises(GaveUp):
        await supervisor.run(task_status=task_status)
