import trio

from supervisors import Backoff, Branch, ChildSpec, Leaf, SupervisorSpec, inspect, render
from tests.supervisors.puppets import puppets, specs, start_owner

SLOW = Backoff(first=9, min=9, max=9, jitter=0, max_failures=9)


async def test_a_running_tree_is_drawn_in_start_order(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a, b, c, d) = puppets("abcd")
    inner = SupervisorSpec(
        [*specs([b], restart="transient", backoff=SLOW), *specs([c])], strategy="rest_for_one", intensity=3, period=60
    )
    spec = SupervisorSpec([*specs([a]), ChildSpec("m", inner), *specs([d])])
    owner = await start_owner(nursery, spec)
    await trio.sleep(4)
    await b.crashes()
    await owner.supervisor.terminate_child("d")

    assert render(inspect(owner.supervisor)).splitlines() == [
        "root  one_for_one, at most 1 restart in 5 s",
        "├─ a  permanent, running for 4 s",
        "├─ m  permanent, running for 4 s: rest_for_one, at most 3 restarts in 60 s",
        "│  ├─ b  transient, restarting, 1 failure",
        "│  └─ c  permanent, stopped",
        "└─ d  permanent, stopped",
    ]
    owner.supervisor.stop()


async def test_a_tree_is_a_value(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))

    tree = inspect(owner.supervisor)

    leaf = Leaf("a", "worker", "running", "permanent", 0, 0.0)
    assert tree == Branch("root", "one_for_one", 1, 5.0, None, (leaf,))
    owner.supervisor.stop()
    await owner.supervisor.wait()
    assert tree.children == (leaf,)


async def test_a_tree_can_be_looked_at_while_its_supervisor_is_busy(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a, b) = puppets("ab")
    b.plan = ["hang"]
    owner = await start_owner(nursery, SupervisorSpec(specs([a])))
    with trio.move_on_after(1):
        async with trio.open_nursery() as caller:
            caller.start_soon(owner.supervisor.start_child, *specs([b]))
            await trio.sleep(0.5)

            assert [child.id for child in inspect(owner.supervisor).children if isinstance(child, Leaf)] == ["a"]
    owner.supervisor.stop()
