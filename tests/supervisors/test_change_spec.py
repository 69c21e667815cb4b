"""change_spec: what goes on, what is stopped, what waits to be started, and which terms hold from then on."""

import pytest
import trio

from supervisors import Backoff, ChildSpec, SpecError, Supervisor, SupervisorSpec, Template
from tests.supervisors.puppets import Owner, Puppet, code_of, puppets, specs, start_owner


async def order(owner: Owner) -> list[tuple[str, str]]:
    return [(info.id, info.state) for info in reversed(await owner.supervisor.which_children())]


async def test_children_in_both_specs_go_on_and_the_others_are_stopped_or_wait(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b, c, d) = puppets("abcd")
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b, c])))
    log.clear()

    await owner.supervisor.change_spec(SupervisorSpec(specs([d, c, a])))

    assert log == ["-b shutdown"]
    assert await order(owner) == [("d", "stopped"), ("c", "running"), ("a", "running")]
    assert await owner.supervisor.restart_child("d") == "d#1"
    assert await code_of(owner.supervisor.restart_child("b")) == "not_found"
    owner.supervisor.stop()


async def test_the_new_order_holds_for_the_next_restart_of_the_group(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    log, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b]), strategy="one_for_one"))
    await owner.supervisor.change_spec(SupervisorSpec(specs([b, a]), strategy="one_for_all"))
    log.clear()

    await a.crashes()

    assert log == ["-a crash", "-b shutdown", "+b", "+a"]
    owner.supervisor.stop()


async def test_the_new_terms_hold_from_the_next_end_on(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))
    await owner.supervisor.change_spec(SupervisorSpec(specs([a], restart="temporary")))

    await a.crashes()

    assert await order(owner) == []
    owner.supervisor.stop()


async def test_restarts_before_the_change_count_against_the_new_intensity(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a]), intensity=5))
    await a.crashes()
    await a.crashes()
    await owner.supervisor.change_spec(SupervisorSpec(specs([a]), intensity=2))

    await a.crashes()

    assert owner.supervisor.exit is not None


async def test_a_start_that_differs_is_for_the_next_life(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a,) = puppets("a")
    other = Puppet("other", log)
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))
    await owner.supervisor.change_spec(SupervisorSpec([ChildSpec("a", other)]))
    assert log == ["+a"]

    await a.crashes()

    assert log == ["+a", "-a crash", "+other"]
    owner.supervisor.stop()


async def test_a_temporary_child_that_has_ended_stays_forgotten(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a, b) = puppets("ab")
    spec = SupervisorSpec([*specs([a], restart="temporary"), *specs([b])])
    owner = await start_owner(nursery, spec)
    await a.crashes()

    await owner.supervisor.change_spec(spec)

    assert await order(owner) == [("b", "running")]
    owner.supervisor.stop()


async def test_a_restart_that_is_due_is_cancelled_with_its_child(autojump_clock: object, nursery: trio.Nursery) -> None:
    log, (a, b) = puppets("ab")
    slow = Backoff(first=10, min=10, max=10)
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b], backoff=slow), intensity=5, period=1000))
    await a.crashes()
    assert await order(owner) == [("a", "restarting"), ("b", "running")]

    await owner.supervisor.change_spec(SupervisorSpec(specs([b])))
    await trio.sleep(60)

    assert (log[-1], await order(owner)) == ("-a crash", [("b", "running")])
    owner.supervisor.stop()


async def test_dynamic_children_have_no_spec_to_change(autojump_clock: object, nursery: trio.Nursery) -> None:
    simple = SupervisorSpec(strategy="simple_one_for_one", template=Template(lambda puppet: puppet))
    owner = await start_owner(nursery, SupervisorSpec())

    with pytest.raises(SpecError, match="simple_one_for_one"):
        await owner.supervisor.change_spec(simple)
    assert await code_of(Supervisor(SupervisorSpec()).change_spec(SupervisorSpec())) == "noproc"
    owner.supervisor.stop()
