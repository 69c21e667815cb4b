import itertools
import tracemalloc
from typing import Any

import pytest

from agentos.agents.life.lifecycle import State
from agentos.agents.life.present import Life
from agentos.agents.registry import LAST_LINES, MAX_ENDED, MAX_ENDED_WHOLE, Agent, Registry, describe_end
from agentos.agents.spec import AgentSpec
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.llm.settings import Account
from agentos.sandbox.status import Status
from agentos.services.events import (
    AgentOver,
    AgentReady,
    AgentResumed,
    AgentSpawned,
    AgentState,
    AgentUnhealthy,
    Event,
)
from agentos.services.rate_limit import Rate
from agentos_sdk.errors import AlreadyExists, BadRequest, NotFound
from agentos_sdk.values import End, Layer
from tests.support.rights import Grants, Notebook
from tests.support.runs.rows import each_row

numbers = itertools.count(1)
TABLE = Table(())


def agent(name: str, parent: Agent | None = None, **more: Any) -> Agent:
    caller = Caller(next(numbers), "agent", name, TABLE, Grants(), Notebook())
    return Agent(AgentSpec(name, **more), caller, ("root",), parent, 0, None, (Account(name),), Rate(1, 1))


def ended(one: Agent) -> Agent:
    one.over.set()
    return one


def test_a_name_is_free_again_when_its_agent_is_over() -> None:
    registry = Registry()
    first, second = agent("a"), agent("a")
    registry.add(first)
    with pytest.raises(AlreadyExists, match=f"id {first.id}, starting"):
        registry.add(second)

    ended(first)
    registry.add(second)

    assert registry.find(None, "a") is second
    assert registry.find(first.id, None) is first


@pytest.mark.parametrize(
    ("number", "name", "error"), [(None, None, BadRequest), (1, "a", BadRequest), (9, None, NotFound)]
)
def test_a_request_must_mean_one_agent(number: int | None, name: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        Registry().find(number, name)


def test_ended_agents_are_forgotten_oldest_first_and_their_output_before() -> None:
    registry = Registry()
    lasting = agent("lasting")
    registry.add(lasting)
    for number in range(MAX_ENDED + 10):
        one = agent(f"a{number}")
        for line in range(LAST_LINES + 10):
            one.output.add("stdout", str(line))
        registry.add(one)
        ended(one)
        registry.retire(one)
    registry.add(agent("last"))

    kept = list(registry)
    assert len(kept) == MAX_ENDED + 2
    assert kept[0] is lasting
    with pytest.raises(NotFound):
        registry.find(None, "a0")
    lengths = [len(one.output.since(0)[0]) for one in kept[1:-1]]
    assert lengths == [LAST_LINES] * (MAX_ENDED - MAX_ENDED_WHOLE) + [LAST_LINES + 10] * MAX_ENDED_WHOLE


def test_descent_is_known_at_any_remove() -> None:
    registry = Registry()
    root = agent("root-agent")
    child = agent("child", root)
    leaf = agent("leaf", child)
    for one in (root, child, leaf):
        registry.add(one)

    assert registry.descends(leaf.id, root.id)
    assert not registry.descends(root.id, leaf.id)
    assert not registry.descends(root.id, root.id)
    assert registry.living_below(root) == [child, leaf]
    ended(leaf)
    assert registry.living_below(root) == [child]


def test_a_change_of_state_is_published() -> None:
    published = list[Event]()
    registry, one = Registry(published.append), agent("a")

    registry.change(one, ready := AgentReady(one.id, "a", 77))

    assert one.state is State.RUNNING
    assert published == [ready, AgentState(one.id, "a", "running")]


def test_a_first_life_announces_its_state_and_an_event_without_a_new_state_announces_none() -> None:
    published = list[Event]()
    registry, one = Registry(published.append), agent("a")

    registry.begin_life(one)
    registry.change(one, AgentReady(one.id, "a", 77))
    registry.change(one, unhealthy := AgentUnhealthy(one.id, "a", "it is deaf"))

    assert published[0] == AgentSpawned(one.id, "a")
    assert published[1] == AgentState(one.id, "a", "starting")
    assert published[-1] == unhealthy


def test_an_event_that_is_impossible_in_a_state_is_a_bug_and_not_published() -> None:
    published = list[Event]()
    registry, one = Registry(published.append), agent("a")

    with pytest.raises(AssertionError, match="a: AgentResumed is impossible in the state starting"):
        registry.change(one, AgentResumed(one.id, "a"))

    assert one.state is State.STARTING
    assert published == []


def test_a_new_life_has_nothing_of_the_last_one_but_the_layers_that_were_found() -> None:
    registry, one = Registry(), agent("a")
    last = registry.begin_life(one)
    last.layers, last.connected, last.health.failures, last.spawns = LAYERS, True, 3, True
    last.close()

    life = registry.begin_life(one)

    assert one.life is life is not last
    assert (life.layers, life.connected, life.health.failures, last.spawns) == (LAYERS, False, 0, False)


def test_a_new_life_after_the_end_of_a_group_begins_with_fresh_events() -> None:
    registry, one = Registry(), agent("a")
    before = one.caller.greeted
    before.set()
    one.dismiss()
    registry.change(one, AgentOver(one.id, "a"))
    ended(one)

    registry.begin_life(one)

    assert (one.state, one.over.is_set(), one.wish.dismissed) == (State.STARTING, False, False)
    assert not one.caller.greeted.is_set()


@each_row(
    ("shutdown", "grace", "seconds"),
    [(5.0, None, 5.0), ("brutal_kill", None, 0.0), ("infinity", None, float("inf")), (5.0, 0.0, 0.0), (5.0, 9.0, 9.0)],
)
def test_how_long_an_agent_may_take_to_stop(shutdown: Any, grace: float | None, seconds: float) -> None:
    one = agent("a", shutdown=shutdown)
    if grace is not None:
        one.limit_shutdown_time(grace)

    assert one.shutdown_time == seconds


def test_an_end_that_was_asked_for_says_so() -> None:
    assert describe_end(Status(None, 15), requested=True) == End(None, 15, "stopped: killed by SIGTERM")
    assert describe_end(Status(3, None)) == End(3, None, "exit status 3")
    assert str(Status(None, 40)) == "killed by signal 40"


LAYERS = {
    f"layer_{number}": Layer(True, True, "clone", evidence=f"ns:[{number}], ours is ns:[1]") for number in range(18)
}


def test_an_ended_agent_tells_what_it_told_before() -> None:
    registry, one = Registry(), agent("a")
    one.life = Life(LAYERS, lacking=["root"])
    one.output.add("stdout", "its last words")
    one.over.set()
    registry.retire(one)

    assert (one.life.layers, one.life.lacking) == (LAYERS, ["root"])
    assert [line.text for line in one.output.last(5)] == ["its last words"]
    assert one.over.is_set()
    assert not one.settled.is_set()


def test_agents_of_other_levels_and_without_layers_tell_what_they_told_before() -> None:
    registry, layers = Registry(), [{}, LAYERS, {"root": Layer("\udcff", False, reason="none here")}, LAYERS]
    ended = [agent(str(number)) for number in range(4)]
    for one, own in zip(ended, layers, strict=True):
        one.life = Life(own)
        registry.retire(one)

    assert [one.life.layers for one in ended] == layers


def test_an_ended_agent_takes_little_memory() -> None:
    registry = Registry()

    def remember(number: int) -> Agent:
        one = agent(f"a{number}")
        one.life = Life(
            {name: Layer(True, True, "clone", evidence=f"{name}:[{number}], ours is ns:[1]") for name in LAYERS}
        )
        one.output.add("stdout", "its last words")
        one.settle()
        one.over.set()
        registry.retire(one)
        return one

    remember(0)
    tracemalloc.start()
    try:
        kept = [remember(number) for number in range(100)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size / len(kept) < 3000  # bytes; 5,200 with layers as they were, 3,600 with events of its own
