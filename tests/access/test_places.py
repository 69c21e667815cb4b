"""In whose place an agent lives a recorded life again."""

from agentos.access.places import Places
from agentos.agents.registry import Registry
from tests.access.making import add_agent


def test_an_agent_has_the_relatives_of_the_one_in_whose_place_it_is_until_it_leaves_it() -> None:
    registry = Registry()
    chief = add_agent(registry, 2, "chief")
    child, other = add_agent(registry, 3, "child", chief, "chief"), add_agent(registry, 4, "other")
    replay = add_agent(registry, 5, "chief-replay", group="spawned")
    places = Places(registry)

    def relate() -> tuple[bool, bool, bool, int]:
        own, itself = (places.is_own(replay.caller, number) for number in (child.id, replay.id))
        return own, itself, places.are_siblings(replay.id, other.id), places.find(replay.id)

    assert relate() == (False, True, False, replay.id)
    places.take(replay.id, "chief")
    assert relate() == (True, True, True, chief.id)
    assert not places.is_own(replay.caller, other.id)
    places.leave(replay.id)
    assert relate() == (False, True, False, replay.id)


def test_in_the_place_of_an_agent_that_is_gone_it_has_its_own_relatives() -> None:
    places = Places(Registry())
    places.take(5, "gone")

    assert places.find(5) == 5
