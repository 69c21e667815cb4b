from collections.abc import Awaitable, Callable

import trio
import trio.testing
from attrs import frozen

from supervisors import (
    ChildSpec,
    Ended,
    Exit,
    Supervisor,
    SupervisorSpec,
)
from supervisors.child import Life
from tests.supervisors.puppets import code_of, puppets, settle, specs, start_owner
from tests.support.runs.rows import each_row

CRASH = ValueError("at the end")


async def test_a_cancelled_supervisor_takes_its_workers_along_and_its_supervisors_stop_theirs_in_order(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b, c, d) = puppets("abcd")
    inner = ChildSpec("m", SupervisorSpec(specs([b, c])))
    owner = await start_owner(nursery, SupervisorSpec([*specs([a]), inner, *specs([d])]))

    owner.scope.cancel()
    ending = await owner.supervisor.wait()

    assert ending == Exit("killed")
    assert sorted(log[4:]) == ["-a killed", "-b shutdown", "-c shutdown", "-d killed"]
    assert log.index("-c shutdown") < log.index("-b shutdown")
    assert log.count("+a") == 1


async def test_a_kill_during_the_initial_start_leaves_no_child_behind(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b) = puppets("ab")
    b.plan = ["hang"]
    supervisor = Supervisor(SupervisorSpec([*specs([a]), ChildSpec("m", SupervisorSpec(specs([b])))]))

    with trio.move_on_after(1) as scope:
        await nursery.start(supervisor.run)

    assert scope.cancelled_caught
    assert log == ["+a", "-a killed"]


async def test_a_kill_interrupts_an_endless_stop(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b) = puppets("ab")
    b.stubborn = True
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b], shutdown="infinity")))
    owner.supervisor.stop()
    await settle()

    owner.scope.cancel()
    await owner.supervisor.wait()

    assert sorted(log[2:]) == ["-a killed", "-b killed"]


async def test_a_call_under_way_when_the_supervisor_is_killed_answers_noproc(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    a.plan = ["hang"]
    owner = await start_owner(nursery, SupervisorSpec())
    codes: list[str] = []

    async def ask(call: Callable[[], Awaitable[object]]) -> None:
        codes.append(await code_of(call()))

    nursery.start_soon(ask, lambda: owner.supervisor.start_child(*specs([a])))
    await settle()
    nursery.start_soon(ask, owner.supervisor.count_children)
    await settle()
    owner.scope.cancel()
    await owner.supervisor.wait()
    await settle()

    assert codes == ["noproc", "noproc"]


@frozen
class Departing:
    """A child that raises ``failure`` when it is cancelled."""

    failure: Exception

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            raise self.failure


@each_row(("failure", "detail"), [(Ended("normal"), None), (CRASH, CRASH)])
async def test_a_child_that_is_killed_ends_so_whatever_it_raises_meanwhile(
    nursery: trio.Nursery, failure: Exception, detail: object
) -> None:
    life = Life(Departing(failure), lambda life: None)
    await nursery.start(life.run)

    life.kill()

    assert await life.over() == Exit("killed", detail)
