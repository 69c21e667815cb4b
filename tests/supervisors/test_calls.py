import pytest
import trio
import trio.testing

from supervisors import (
    ChildSpec,
    Counts,
    StartFailed,
    Supervisor,
    SupervisorSpec,
    Task,
    Template,
)
from tests.supervisors.puppets import Puppet, code_of, puppets, settle, specs, start_owner


async def test_the_calls_answer_as_in_otp(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))
    calls = owner.supervisor

    assert await calls.start_child(*specs([b])) == "b#1"
    assert await code_of(calls.start_child(*specs([b]))) == "already_started"
    assert await code_of(calls.restart_child("b")) == "running"
    assert await code_of(calls.delete_child("b")) == "running"
    await calls.terminate_child("b")
    assert await code_of(calls.start_child(*specs([b]))) == "already_present"
    assert await calls.restart_child("b") == "b#2"
    await calls.terminate_child("b")
    await calls.delete_child("b")
    assert await code_of(calls.terminate_child("b")) == "not_found"
    assert await calls.count_children() == Counts(1, 1, 0, 1)
    calls.stop()
    await calls.wait()
    assert await code_of(calls.which_children()) == "noproc"


async def test_a_start_that_fails_keeps_no_spec_and_tells_why(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    a.plan = ["fail"]
    owner = await start_owner(nursery, SupervisorSpec())

    with pytest.raises(StartFailed) as failed:
        await owner.supervisor.start_child(*specs([a]))

    assert isinstance(failed.value.cause, RuntimeError)
    assert await owner.supervisor.which_children() == ()
    owner.supervisor.stop()


async def test_a_child_that_ends_without_a_handshake_has_not_started(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    async def forgetful(*, task_status: trio.TaskStatus[None]) -> None: ...

    owner = await start_owner(nursery, SupervisorSpec())

    assert await code_of(owner.supervisor.start_child(ChildSpec("a", Task(forgetful)))) == "start_failed"
    owner.supervisor.stop()


async def test_a_declined_start_is_no_failure(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a, b) = puppets("ab")
    a.plan, b.plan = ["ignore"], ["ignore"]
    owner = await start_owner(nursery, SupervisorSpec())

    assert await owner.supervisor.start_child(*specs([a])) is None
    assert await owner.supervisor.start_child(*specs([b], restart="temporary")) is None

    assert [info.id for info in await owner.supervisor.which_children()] == ["a"]
    owner.supervisor.stop()


async def test_a_significant_child_is_refused_where_that_means_nothing(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec())

    code = await code_of(owner.supervisor.start_child(*specs([a], restart="transient", significant=True)))

    assert code == "bad_combination"
    owner.supervisor.stop()


async def test_dynamic_children_are_addressed_by_handle(autojump_clock: object, nursery: trio.Nursery) -> None:
    spec = SupervisorSpec(strategy="simple_one_for_one", template=Template(lambda puppet: puppet))
    owner, other = await start_owner(nursery, spec), await start_owner(nursery, spec)
    log, (a, b) = puppets("ab")
    for child in (a, b):
        assert await owner.supervisor.start_child(child) == f"{child.name}#1"
    second, first = [info.handle for info in await owner.supervisor.which_children()]
    assert first is not None
    assert second is not None

    assert await code_of(owner.supervisor.terminate_child("1")) == "simple_one_for_one"
    assert await code_of(owner.supervisor.restart_child("1")) == "simple_one_for_one"
    assert await code_of(owner.supervisor.delete_child("1")) == "simple_one_for_one"
    assert await code_of(other.supervisor.terminate_child(first)) == "not_found"
    await owner.supervisor.terminate_child(first)
    await owner.supervisor.terminate_child(first)  # like a dead pid

    assert log[2:] == ["-a shutdown"]
    assert (first.alive, second.alive) == (False, True)
    owner.supervisor.stop()
    other.supervisor.stop()


async def test_an_error_in_the_template_is_a_failed_start(autojump_clock: object, nursery: trio.Nursery) -> None:
    spec = SupervisorSpec(strategy="simple_one_for_one", template=Template(lambda puppet: puppet))
    owner = await start_owner(nursery, spec)

    assert await code_of(owner.supervisor.start_child("one", "too many")) == "start_failed"

    assert await owner.supervisor.count_children() == Counts(1, 0, 0, 0)
    owner.supervisor.stop()


async def test_terminate_may_bring_its_own_patience(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a,) = puppets("a")
    a.stubborn = True
    owner = await start_owner(nursery, SupervisorSpec(specs([a], shutdown="infinity")))
    asked = trio.current_time()

    await owner.supervisor.terminate_child("a", shutdown=2)

    assert log == ["+a", "-a killed"]
    assert trio.current_time() - asked == 2
    assert await code_of(owner.supervisor.terminate_child("a", shutdown=-1)) == "invalid_shutdown"
    owner.supervisor.stop()


async def test_a_caller_that_does_not_wait_for_a_hanging_start_breaks_it_off(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a, b) = puppets("ab")
    a.plan = ["hang"]
    owner = await start_owner(nursery, SupervisorSpec())

    with trio.move_on_after(1):
        await owner.supervisor.start_child(*specs([a]))

    assert await owner.supervisor.start_child(*specs([b])) == "b#1"
    assert [info.id for info in await owner.supervisor.which_children()] == ["b"]
    owner.supervisor.stop()


async def test_a_caller_that_leaves_before_its_turn_withdraws_its_call(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a, b) = puppets("ab")
    a.plan = ["hang"]
    owner = await start_owner(nursery, SupervisorSpec())

    async def impatient(child: Puppet, patience: float) -> None:
        with trio.move_on_after(patience):
            await owner.supervisor.start_child(*specs([child]))

    nursery.start_soon(impatient, a, 2)
    await settle()
    await impatient(b, 1)
    await trio.sleep(2)

    assert await owner.supervisor.which_children() == ()
    assert b.lives == 0
    owner.supervisor.stop()


async def test_a_terminate_takes_effect_though_its_caller_has_left(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a,) = puppets("a")
    a.stubborn = True
    owner = await start_owner(nursery, SupervisorSpec(specs([a], shutdown=5.0)))

    with trio.move_on_after(1):
        await owner.supervisor.terminate_child("a")
    await trio.sleep(5)

    assert log == ["+a", "-a killed"]
    assert [info.state for info in await owner.supervisor.which_children()] == ["stopped"]
    owner.supervisor.stop()


async def test_what_is_not_a_child_spec_is_refused_at_once(autojump_clock: object, nursery: trio.Nursery) -> None:
    owner = await start_owner(nursery, SupervisorSpec())

    with pytest.raises(TypeError, match="one ChildSpec"):
        await owner.supervisor.start_child("a")

    assert await owner.supervisor.which_children() == ()
    owner.supervisor.stop()


async def test_a_call_before_the_supervisor_runs_answers_noproc(autojump_clock: object) -> None:
    assert await code_of(Supervisor(SupervisorSpec()).count_children()) == "noproc"
