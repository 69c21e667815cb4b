from agentos.agents.registry import Registry
from tests.access.making import add_agent, make_callers


def test_an_agent_leaves_the_place_in_which_it_lives_a_life_again_once_it_goes_live() -> None:
    registry = Registry()
    callers = make_callers(registry)
    original, replay = add_agent(registry, 2, "chief"), add_agent(registry, 3, "chief-replay")
    callers.places.take(replay.id, "chief")
    assert callers.places.find(replay.id) == original.id

    callers.go_live(replay.caller, None, whole=False)

    assert callers.places.find(replay.id) == replay.id
