"""Backoff at work: beyond OTP, so no trace covers it."""

import math
import random

import pytest
import trio

from supervisors import (
    Backoff,
    ChildSpec,
    Exit,
    GaveUp,
    IntensityExceeded,
    Refused,
    Report,
    SpecError,
    Supervisor,
    SupervisorSpec,
    Template,
    TooManyFailures,
    inspect,
    render,
)
from supervisors.reports import ChildEnded, ChildStarted, RestartScheduled
from tests.supervisors.puppets import Owner, Puppet, puppets, settle, specs, start_owner

STEADY = Backoff(first=1, min=2, factor=2, max=8, jitter=0, max_failures=99)


def states(owner: Owner) -> dict[str, str]:
    return {info.id: info.state for info in owner.supervisor.children()}


async def restart_takes(child: Puppet) -> float:
    """Seconds from a crash of the child to its next life."""
    begin, back = trio.current_time(), child.next_life
    await child.crashes()
    await back.wait()
    return trio.current_time() - begin


async def test_each_failure_waits_longer_up_to_the_maximum(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))

    waits = [await restart_takes(a) for _ in range(5)]

    assert waits == pytest.approx([1, 2, 4, 8, 8])
    assert [report.delay for report in owner.told(RestartScheduled)] == [1, 2, 4, 8, 8]
    owner.supervisor.stop()


async def test_without_a_backoff_nothing_ever_waits(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a]), intensity=9))
    begin = trio.current_time()

    for _ in range(5):
        await a.crashes()

    assert a.lives == 6
    assert trio.current_time() == begin
    assert owner.told(RestartScheduled) == []
    owner.supervisor.stop()


async def test_the_supervisor_serves_while_a_child_waits(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    await a.crashes()

    assert [info.child for info in await owner.supervisor.which_children()] == ["restarting"]
    with pytest.raises(Refused) as restart:
        await owner.supervisor.restart_child("a")
    with pytest.raises(Refused) as delete:
        await owner.supervisor.delete_child("a")
    assert await owner.supervisor.start_child(*specs([b])) == "b#1"

    assert (restart.value.code, delete.value.code) == ("restarting", "restarting")
    assert log == ["+a", "-a crash", "+b"]
    owner.supervisor.stop()


async def test_terminating_a_child_that_waits_cancels_its_restart(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    await a.crashes()

    await owner.supervisor.terminate_child("a")
    await trio.sleep(60)

    assert (a.lives, states(owner)) == (1, {"a": "stopped"})
    await owner.supervisor.restart_child("a")
    assert await restart_takes(a) == pytest.approx(1)  # its failures were forgotten
    owner.supervisor.stop()


async def test_stopping_does_not_wait_for_what_waits(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    await a.crashes()
    asked = trio.current_time()

    owner.supervisor.stop()
    await owner.supervisor.wait()

    assert trio.current_time() == asked


@pytest.mark.parametrize(("strategy", "spared"), [("one_for_all", ""), ("rest_for_one", "a")])
async def test_a_group_stops_at_once_and_waits_once(
    autojump_clock: object, nursery: trio.Nursery, strategy: str, spared: str
) -> None:
    log, children = puppets("abc")
    spec = SupervisorSpec(specs(children, backoff=STEADY), strategy=strategy, intensity=99)  # type: ignore[arg-type]
    owner = await start_owner(nursery, spec)
    begin = trio.current_time()

    await children[1].crashes()
    assert [name for name, state in states(owner).items() if state == "running"] == list(spared)
    assert trio.current_time() == begin
    await trio.sleep(1.1)

    assert log[-3 + len(spared) :] == [f"+{name}" for name in "abc" if name not in spared]
    assert set(states(owner).values()) == {"running"}
    owner.supervisor.stop()


async def test_an_earlier_siblings_crash_does_not_cut_a_delay_short(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b) = puppets("ab")
    slow = Backoff(first=10, min=10, max=10, jitter=0, max_failures=99)
    spec = SupervisorSpec([*specs([a]), *specs([b], backoff=slow)], strategy="rest_for_one", intensity=99)
    owner = await start_owner(nursery, spec)
    await b.crashes()
    await trio.sleep(4)

    await a.crashes()
    await trio.sleep(5.5)
    assert log == ["+a", "+b", "-b crash", "-a crash"]
    await trio.sleep(1)

    assert log[4:] == ["+a", "+b"]
    owner.supervisor.stop()


async def test_the_budget_comes_before_the_delay(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=1, period=60))
    await restart_takes(a)
    crashed = trio.current_time()

    await a.crashes()

    assert isinstance(owner.error, GaveUp)
    assert isinstance(owner.error.exit.detail, IntensityExceeded)
    assert trio.current_time() == crashed


async def test_a_healthy_life_starts_over_with_the_first_delay(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    for _ in range(3):
        await restart_takes(a)

    await trio.sleep(16)

    assert await restart_takes(a) == pytest.approx(1)
    owner.supervisor.stop()


async def test_a_clean_exit_does_not_make_the_delay_longer(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    await restart_takes(a)
    await restart_takes(a)

    await a.ends(Exit("normal"))
    await trio.sleep(5)

    assert [report.delay for report in owner.told(RestartScheduled)] == [1, 2, 2]
    owner.supervisor.stop()


async def test_a_supervisor_that_gave_up_has_failed_for_its_parents_backoff(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    inner = ChildSpec("m", SupervisorSpec(specs([a]), intensity=0), backoff=STEADY)
    owner = await start_owner(nursery, SupervisorSpec([inner], intensity=99))

    for _ in range(3):
        await restart_takes(a)

    assert [report.delay for report in owner.told(RestartScheduled)] == [1, 2, 4]
    owner.supervisor.stop()


async def test_a_failed_restart_is_one_more_failure(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    a.plan = ["fail", "fail"]

    await restart_takes(a)

    assert log == ["+a", "-a crash", "!a", "!a", "+a"]
    assert [report.delay for report in owner.told(RestartScheduled)] == [1, 2, 4]
    owner.supervisor.stop()


async def test_after_so_many_failures_in_a_row_the_supervisor_gives_up(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    thrice = Backoff(first=1, min=1, max=1, jitter=0, max_failures=3)
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=thrice), intensity=99))

    await restart_takes(a)
    await restart_takes(a)
    await a.crashes()

    assert isinstance(owner.error, GaveUp)
    assert isinstance(owner.error.exit.detail, TooManyFailures)
    assert str(owner.error) == "shutdown: 'a' failed 3 times in a row (crash: ValueError('a'))"


async def test_a_child_added_later_is_held_to_a_reachable_intensity_too(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(intensity=5, period=10))

    with pytest.raises(SpecError, match="never exceeded"):
        await owner.supervisor.start_child(*specs([a], backoff=Backoff(first=9, min=9, max=9)))

    owner.supervisor.stop()


async def test_dynamic_children_wait_each_for_itself(autojump_clock: object, nursery: trio.Nursery) -> None:
    template = Template(lambda puppet: puppet, backoff=STEADY)
    spec = SupervisorSpec(strategy="simple_one_for_one", template=template, intensity=99)
    owner = await start_owner(nursery, spec)
    log, (a, b) = puppets("ab")
    await owner.supervisor.start_child(a)
    await owner.supervisor.start_child(b)

    await a.crashes()
    handle = next(info.handle for info in owner.supervisor.children() if info.state == "restarting")
    assert handle is not None
    await owner.supervisor.terminate_child(handle)
    await b.crashes()
    await trio.sleep(2)

    assert log == ["+a", "+b", "-a crash", "-b crash", "+b"]
    owner.supervisor.stop()


async def test_the_seed_decides_the_jitter(autojump_clock: object, nursery: trio.Nursery) -> None:
    async def delays(seed: int) -> list[float]:
        _, (a,) = puppets("a")
        reports: list[Report] = []
        spec = SupervisorSpec(specs([a], backoff=Backoff(first=1, max_failures=99)), intensity=99)
        supervisor = Supervisor(spec, observe=reports.append, random=random.Random(seed))
        await nursery.start(supervisor.run)
        for _ in range(4):
            await restart_takes(a)
        supervisor.stop()
        await supervisor.wait()
        return [report.delay for report in reports if isinstance(report, RestartScheduled)]

    assert await delays(3) == await delays(3)
    assert await delays(3) != await delays(4)


async def test_reports_come_in_the_order_things_happen(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=STEADY), intensity=99))
    await a.crashes()
    await trio.sleep(2)

    kinds = [type(report).__name__ for report in owner.reports]
    assert kinds == [
        "ChildStarted",
        "SupervisorStarted",
        "ChildEnded",
        "RestartScheduled",
        "Restarting",
        "ChildStarted",
    ]
    started, ended = owner.told(ChildStarted)[0], owner.told(ChildEnded)[0]
    assert (started.path, started.value) == (("root",), "a#1")
    assert ended.exit.reason == "crash"
    owner.supervisor.stop()


async def test_without_a_limit_a_child_is_restarted_for_ever(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    steady = Backoff(first=1, min=1, max=2, jitter=0)
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=steady), intensity=math.inf, period=10**6))

    for _ in range(200):
        await restart_takes(a)

    await settle()
    assert states(owner) == {"a": "running"}
    assert "any restarts" in render(inspect(owner.supervisor))
    owner.supervisor.stop()


async def test_without_a_limit_max_failures_still_gives_up(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    steady = Backoff(first=1, min=1, max=2, jitter=0, max_failures=3)
    owner = await start_owner(nursery, SupervisorSpec(specs([a], backoff=steady), intensity=math.inf))

    for _ in range(2):
        await restart_takes(a)
    await a.crashes()
    ending = await owner.supervisor.wait()

    assert isinstance(ending.detail, TooManyFailures)


@pytest.mark.parametrize(
    "backoff", [None, Backoff(max=0.9), Backoff(min=0, max=30), Backoff(min=0.5, factor=1, max=30)], ids=str
)
def test_without_a_limit_each_child_needs_a_backoff_that_grows(backoff: Backoff | None) -> None:
    _, (a,) = puppets("a")

    with pytest.raises(SpecError, match="need a backoff that grows to a max of 1 s or more") as refused:
        SupervisorSpec(specs([a], backoff=backoff), intensity=math.inf)

    assert refused.value.code == "bad_combination"
    SupervisorSpec(specs([a], backoff=backoff, restart="temporary"), intensity=math.inf)


@pytest.mark.parametrize("backoff", [Backoff(min=1, factor=1, max=1), Backoff(min=0.1, factor=1.1, max=1)], ids=str)
def test_without_a_limit_a_backoff_of_one_second_or_growing_to_it_is_enough(backoff: Backoff) -> None:
    _, (a,) = puppets("a")

    SupervisorSpec(specs([a], backoff=backoff), intensity=math.inf)
