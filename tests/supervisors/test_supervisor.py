import math

import pytest
import trio
import trio.testing

from supervisors import (
    SHUTDOWN,
    AutoShutdown,
    ChildSpec,
    Counts,
    Ended,
    Exit,
    GaveUp,
    IntensityExceeded,
    Interrupted,
    Report,
    SpecError,
    StartFailed,
    Supervisor,
    SupervisorSpec,
    Task,
    Template,
)
from supervisors.reports import ChildEnded, ChildStarted
from tests.supervisors.puppets import code_of, puppets, settle, specs, start_owner

# -- Start and stop ----------------------------------------------------------------------------------------------------


async def test_children_start_in_order_and_stop_in_reverse(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, children = puppets("abc")
    owner = await start_owner(nursery, SupervisorSpec(specs(children)))

    owner.supervisor.stop()
    ending = await owner.supervisor.wait()

    assert log == ["+a", "+b", "+c", "-c shutdown", "-b shutdown", "-a shutdown"]
    assert (ending, owner.error) == (SHUTDOWN, None)


async def test_children_with_no_order_of_shutdown_stop_together(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, children = puppets("abc")
    for child in children:
        child.stubborn = True
    spec = SupervisorSpec(specs(children, shutdown=7.0), shutdown_order="together")
    owner = await start_owner(nursery, spec)
    began = trio.current_time()

    owner.supervisor.stop()
    await owner.supervisor.wait()

    assert trio.current_time() - began == 7  # not 21: trio's clock jumps, so this is the number of waits in a row
    assert sorted(log[3:]) == ["-a killed", "-b killed", "-c killed"]


async def test_a_change_of_the_spec_stops_removed_children_together(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a, b, c) = puppets("abc")
    b.stubborn = c.stubborn = True
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b, c], shutdown=7.0), shutdown_order="together"))
    began = trio.current_time()

    await owner.supervisor.change_spec(SupervisorSpec(specs([a], shutdown=7.0), shutdown_order="together"))

    assert trio.current_time() - began == 7
    assert [child.id for child in owner.supervisor.children()] == ["a"]
    owner.supervisor.stop()


@pytest.mark.parametrize(
    ("strategy", "order", "code"),
    [
        ("one_for_all", "together", "bad_combination"),
        ("rest_for_one", "together", "bad_combination"),
        ("one_for_one", "random", "invalid_shutdown_order"),
    ],
)
def test_an_order_of_shutdown_that_a_strategy_does_not_have_is_refused(strategy: str, order: str, code: str) -> None:
    with pytest.raises(SpecError) as refused:
        SupervisorSpec(strategy=strategy, shutdown_order=order)  # type: ignore[arg-type]

    assert refused.value.code == code


async def test_several_children_are_terminated_at_the_same_time(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a, b, c) = puppets("abc")
    a.stubborn = c.stubborn = True
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b, c], shutdown=7.0)))
    began = trio.current_time()

    await owner.supervisor.terminate_children(["a", "c", "unknown"])

    assert trio.current_time() - began == 7
    assert [child.state for child in owner.supervisor.children()] == ["stopped", "running", "stopped"]
    assert await owner.supervisor.restart_child("c") == "c#2"
    owner.supervisor.stop()


async def test_the_next_child_starts_only_after_the_handshake(autojump_clock: object, nursery: trio.Nursery) -> None:
    seen: list[tuple[str, float]] = []

    async def slow(name: str, *, task_status: trio.TaskStatus[str]) -> None:
        seen.append((name, trio.current_time()))
        await trio.sleep(3)
        task_status.started(name.upper())
        await trio.sleep_forever()

    begin = trio.current_time()
    spec = SupervisorSpec([ChildSpec("a", Task(slow, "a")), ChildSpec("b", Task(slow, "b"))])
    owner = await start_owner(nursery, spec)

    assert [(name, time - begin) for name, time in seen] == [("a", 0), ("b", 3)]
    assert [info.child for info in await owner.supervisor.which_children()] == ["B", "A"]
    owner.supervisor.stop()


async def test_a_child_that_does_not_come_up_undoes_the_start_and_names_the_way_to_it(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b, c) = puppets("abc")
    b.plan = ["fail"]
    inner = ChildSpec("m", SupervisorSpec(specs([b])))
    supervisor = Supervisor(SupervisorSpec([*specs([a]), inner, *specs([c])]))

    with pytest.raises(StartFailed) as failed:
        await supervisor.run()

    assert failed.value.path == ("m", "b")
    assert str(failed.value) == "m / b did not start: RuntimeError('b does not start')"
    assert log == ["+a", "!b", "-a shutdown"]
    assert supervisor.exit is not None
    assert supervisor.exit.reason == "failed_start"


async def test_a_stubborn_child_is_killed_after_its_seconds(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a,) = puppets("a")
    a.stubborn = True
    owner = await start_owner(nursery, SupervisorSpec(specs([a], shutdown=7.0)))
    asked = trio.current_time()

    owner.supervisor.stop()
    await owner.supervisor.wait()

    assert log == ["+a", "-a killed"]
    assert trio.current_time() - asked == 7


async def test_brutal_kill_does_not_ask(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a], shutdown="brutal_kill")))

    owner.supervisor.stop()
    await owner.supervisor.wait()

    assert log == ["+a", "-a killed"]


async def test_dynamic_children_stop_together_in_the_time_of_one(autojump_clock: object, nursery: trio.Nursery) -> None:
    template = Template(lambda puppet: puppet, shutdown=5.0)
    owner = await start_owner(nursery, SupervisorSpec(strategy="simple_one_for_one", template=template))
    log, children = puppets("abc")
    for child in children:
        child.stubborn = True
        await owner.supervisor.start_child(child)
    asked = trio.current_time()

    owner.supervisor.stop()
    await owner.supervisor.wait()

    assert trio.current_time() - asked == 5
    assert sorted(log[3:]) == ["-a killed", "-b killed", "-c killed"]


async def test_setting_the_event_given_to_run_is_an_orderly_stop(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, children = puppets("ab")
    supervisor, stop = Supervisor(SupervisorSpec(specs(children))), trio.Event()
    nursery.start_soon(supervisor.run, stop)
    await settle()

    stop.set()

    assert await supervisor.wait() == SHUTDOWN
    assert log[2:] == ["-b shutdown", "-a shutdown"]


async def test_stopping_breaks_off_a_start_that_hangs(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))
    b.plan = ["hang"]
    outcome: list[str] = []

    async def add() -> None:
        outcome.append(await code_of(owner.supervisor.start_child(*specs([b]))))

    nursery.start_soon(add)
    await settle()
    owner.supervisor.stop()
    await owner.supervisor.wait()

    assert outcome == ["start_failed"]
    assert log == ["+a", "-a shutdown"]


async def test_a_stop_that_comes_before_the_first_start_starts_nothing(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a,) = puppets("a")
    a.plan = ["hang"]
    supervisor = Supervisor(SupervisorSpec(specs([a])))
    supervisor.stop()

    with pytest.raises(StartFailed) as failed:
        await supervisor.run()

    assert isinstance(failed.value.root_cause, Interrupted)
    assert (log, a.plan) == ([], ["hang"])


async def test_a_stop_between_two_of_the_first_starts_starts_no_further_one(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b) = puppets("ab")
    b.plan = ["hang"]

    def observe(report: Report) -> None:
        if isinstance(report, ChildStarted):
            supervisor.stop()

    supervisor = Supervisor(SupervisorSpec(specs([a, b])), observe=observe)

    with pytest.raises(StartFailed):
        await supervisor.run()

    assert (log, b.plan) == (["+a", "-a shutdown"], ["hang"])


async def test_stopping_ends_a_subtree_that_was_still_starting(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b, c) = puppets("abc")
    c.plan = ["hang"]
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))
    codes: list[str] = []

    async def add() -> None:
        codes.append(await code_of(owner.supervisor.start_child(ChildSpec("m", SupervisorSpec(specs([b, c]))))))

    nursery.start_soon(add)
    await settle()
    owner.supervisor.stop()
    ending = await owner.supervisor.wait()

    assert log == ["+a", "+b", "-b killed", "-a shutdown"]
    assert (codes, ending) == (["start_failed"], Exit("shutdown"))


async def test_a_supervisor_may_run_inside_a_child(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a,) = puppets("a")

    async def life(*, task_status: trio.TaskStatus[Supervisor]) -> None:
        async with trio.open_nursery() as own:
            inner = Supervisor(SupervisorSpec(specs([a]), intensity=0), id="inner", within=("root", "x"))
            task_status.started(await own.start(inner.run))

    owner = await start_owner(nursery, SupervisorSpec([ChildSpec("x", Task(life), restart="transient")]))
    await a.crashes()

    assert [info.state for info in owner.supervisor.children()] == ["stopped"]
    assert log == ["+a", "-a crash"]
    assert "the last for 'a'" in str(owner.told(ChildEnded)[0].exit)
    owner.supervisor.stop()


async def test_a_supervisor_runs_once(autojump_clock: object, nursery: trio.Nursery) -> None:
    owner = await start_owner(nursery, SupervisorSpec())
    owner.supervisor.stop()
    await owner.supervisor.wait()

    with pytest.raises(RuntimeError, match="once"):
        await owner.supervisor.run()


# -- Why it ended ------------------------------------------------------------------------------------------------------


async def test_giving_up_tells_which_child_and_how_many_restarts(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b]), intensity=2, period=60))

    for _ in range(3):
        await a.crashes()

    assert isinstance(owner.error, GaveUp)
    assert owner.supervisor.exit == owner.error.exit
    assert isinstance(owner.error.exit.detail, IntensityExceeded)
    assert str(owner.error) == ("shutdown: 3 restarts in 60 s were needed; the last for 'a' (crash: ValueError('a'))")
    assert log[-2:] == ["-a crash", "-b shutdown"]


async def test_giving_up_reaches_the_owner_out_of_its_nursery(autojump_clock: object) -> None:
    _, (a,) = puppets("a")
    supervisor = Supervisor(SupervisorSpec(specs([a]), intensity=0))

    with pytest.raises(ExceptionGroup) as ended:
        async with trio.open_nursery() as nursery:
            assert await nursery.start(supervisor.run) is supervisor
            await a.crashes()
            await trio.sleep_forever()

    (gave_up,) = ended.value.exceptions
    assert isinstance(gave_up, GaveUp)
    assert gave_up.exit == supervisor.exit


async def test_giving_up_escalates_and_keeps_the_first_cause(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b) = puppets("ab")
    inner = ChildSpec("m", SupervisorSpec(specs([a]), intensity=0))
    owner = await start_owner(nursery, SupervisorSpec([inner, *specs([b])], strategy="one_for_all", intensity=1))

    await a.crashes()
    assert log == ["+a", "+b", "-a crash", "-b shutdown", "+a", "+b"]
    await a.crashes()

    assert log[6:] == ["-a crash", "-b shutdown"]
    assert "'m' (shutdown: 1 restarts in 5 s were needed; the last for 'a' (crash" in str(owner.error)


async def test_an_auto_shutdown_is_a_wished_for_end_that_names_the_child(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b) = puppets("ab")
    children = [*specs([a], restart="transient", significant=True), *specs([b])]
    owner = await start_owner(nursery, SupervisorSpec(children, auto_shutdown="any_significant"))

    await a.ends(Exit("normal"))

    assert owner.error is None
    assert owner.supervisor.exit == Exit("shutdown", AutoShutdown("a", Exit("normal")))
    assert log[2:] == ["-a normal", "-b shutdown"]


async def test_a_transient_supervisor_that_gave_up_is_not_restarted(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    inner = ChildSpec("m", SupervisorSpec(specs([a]), intensity=0), restart="transient")
    owner = await start_owner(nursery, SupervisorSpec([inner]))

    await a.crashes()

    assert [info.state for info in owner.supervisor.children()] == ["stopped"]
    assert await owner.supervisor.count_children() == Counts(1, 0, 1, 0)
    owner.supervisor.stop()


# -- Tasks -------------------------------------------------------------------------------------------------------------


async def test_a_plain_function_crashes_with_its_exception_and_ends_normally_by_returning(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    async def fail() -> None:
        async with trio.open_nursery() as inner:  # which wraps the exception in a group
            inner.start_soon(trio.sleep, 1)
            raise KeyError("x")

    async def succeed() -> None:
        await trio.sleep(1)

    async def shut_down() -> None:
        raise Ended("shutdown_term", "enough")

    children = [
        ChildSpec(name, Task(function), restart="temporary")
        for name, function in {"fail": fail, "succeed": succeed, "shut_down": shut_down}.items()
    ]
    owner = await start_owner(nursery, SupervisorSpec(children))
    await trio.sleep(2)

    endings = {report.id: str(report.exit) for report in owner.told(ChildEnded)}
    assert endings == {"fail": "crash: KeyError('x')", "succeed": "normal", "shut_down": "shutdown_term: enough"}
    owner.supervisor.stop()


async def test_a_plain_function_is_cancelled_when_asked_to_stop(autojump_clock: object, nursery: trio.Nursery) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cleaned.append("up")

    owner = await start_owner(nursery, SupervisorSpec([ChildSpec("a", Task(work))]))
    await owner.supervisor.terminate_child("a")

    assert cleaned == ["up"]
    assert str(owner.reports[-1]).startswith("ChildTerminated(path=('root',), id='a', exit=Exit(reason='shutdown'")
    owner.supervisor.stop()


async def test_an_interrupt_in_a_child_goes_through_the_whole_tree(autojump_clock: object) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    log, (a,) = puppets("a")
    supervisor = Supervisor(
        SupervisorSpec([*specs([a]), ChildSpec("m", SupervisorSpec([ChildSpec("x", Task(interrupted))]))])
    )

    with pytest.raises(BaseExceptionGroup) as stopped:
        await supervisor.run()

    assert stopped.value.subgroup(KeyboardInterrupt) is not None
    assert log == ["+a", "-a killed"]


async def test_a_tree_of_hundreds_starts_and_stops(autojump_clock: object, nursery: trio.Nursery) -> None:
    children = [ChildSpec(f"c{number}", Task(trio.sleep, math.inf)) for number in range(300)]
    before = trio.lowlevel.current_statistics().tasks_living
    owner = await start_owner(nursery, SupervisorSpec(children, strategy="one_for_all"))

    assert trio.lowlevel.current_statistics().tasks_living - before <= 2 * 300 + 2
    assert (await owner.supervisor.count_children()).active == 300
    owner.supervisor.stop()
    await owner.supervisor.wait()
