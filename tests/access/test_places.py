"""In whose place an agent lives a recorded life again."""

from agentos.access.places import Places
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import AgentSpec
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.services.rate_limit import Rate
from tests.support.rights import Grants, Notebook


def add(registry: Registry, number: int, name: str, parent: Agent | None = None, group: str = "root") -> Agent:
    caller = Caller(number, "agent", name, Table((), None), Grants(), Notebook())
    agent = Agent(
        AgentSpec(name),
        caller,
        (group,) if parent is None else (group, name),
        parent,
        1 if parent else None,
        None,
        (),
        Rate(1, 1),
    )
    registry.add(agent)
    return agent


def test_an_agent_has_the_relatives_of_the_one_in_whose_place_it_is_until_it_leaves_it() -> None:
    registry = Registry()
    chief = add(registry, 2, "chief")
    child, other = add(registry, 3, "child", chief, "chief"), add(registry, 4, "other")
    replay = add(registry, 5, "chief-replay", group="spawned")
    places = Places(registry)

    def relate() -> tuple[bool, bool, bool, int]:
        own, itself = (places.is_own(replay.caller, number) for number in (child.id, replay.id))
        return own, itself, places.are_siblings(replay.id, other.id), places.find(replay.id)

    assert relate() == (False, True, False, replay.id)
    places.take(replay.id, "chief")
    assert relate() == (True, True, True, chief.id)
    places.leave(replay.id)
    assert relate() == (False, True, False, replay.id)


def test_in_the_place_of_an_agent_that_is_gone_it_has_its_own_relatives() -> None:
    places = Places(Registry())
    places.take(5, "gone")

    assert places.find(5) == 5
