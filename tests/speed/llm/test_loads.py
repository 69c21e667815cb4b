"""A load is what its words promise, and the same at every run."""

import itertools
from collections import Counter

import pytest

from agentos.llm.queue.fair_queue import jain_index, weighted_cost

from .simulation.loads import FLOOD, SIZES, Agent, contest, flooded, modest
from .simulation.simulator import Asked, Behaviour


def ids(agents: list[Agent]) -> list[tuple[str, float]]:
    return [(each.asked.id, each.due) for agent in agents for each in itertools.islice(agent.requests, 50)]


@pytest.mark.parametrize("n", [5, 50, 500])
def test_a_flood_has_one_flooder_and_a_tenth_of_heavy_agents(n: int) -> None:
    kinds = Counter(agent.kind for agent in flooded(n, 4, Behaviour()))

    assert kinds == {"flooder": 1, "heavy": max(1, n // 10), "light": n - max(1, n // 10) - 1}


def test_only_the_flooder_waits_for_its_answers_with_a_hundred_under_way() -> None:
    outstanding = {agent.kind: agent.outstanding for agent in flooded(50, 4, Behaviour())}

    assert outstanding == {"light": None, "heavy": None, "flooder": FLOOD}


def test_a_flood_asks_for_what_the_provider_can_do_in_that_time() -> None:
    behaviour = Behaviour()
    agents = flooded(50, 100, behaviour)

    work = sum(
        behaviour.base + behaviour.per_input * each.asked.input + behaviour.per_output * each.asked.output
        for agent in agents
        for each in agent.requests
    )

    assert work == pytest.approx(100 * behaviour.slots, rel=0.1)


@pytest.mark.parametrize("make", [lambda: flooded(50, 4, Behaviour()), lambda: contest(50), lambda: modest(50, 3)])
def test_a_load_is_the_same_at_every_run(make: "type[list[Agent]]") -> None:
    assert ids(make()) == ids(make())


def test_no_agent_asks_a_question_twice() -> None:
    assert set(Counter(name for name, _ in ids(contest(50))).values()) == {1}


def test_the_contest_served_request_by_request_has_the_index_that_is_compared_with() -> None:
    sizes = [weighted_cost(*SIZES[agent.kind]) for agent in contest(50)]

    assert jain_index(sizes) == pytest.approx(0.64)


def test_a_question_says_of_itself_what_it_is() -> None:
    asked = Asked("light-3/17", 60, 20)
    body = {"messages": [{"role": "user", "content": asked.text()}], "stream": True}

    assert Asked.read(body) == asked


def test_an_answer_is_no_longer_than_it_may_be() -> None:
    body = {"messages": [{"content": Asked("a/0", 60, 20).text()}], "stream": True, "max_completion_tokens": 7}

    assert Asked.read(body).output == 7
