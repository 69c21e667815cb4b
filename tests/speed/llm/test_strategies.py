"""The rules that the kernel's choice is compared with choose as their names say."""

from collections.abc import Callable

import pytest

from .simulation.loads import Request
from .simulation.simulator import Asked
from .simulation.strategies import FirstCome, RoundRobin, Rule, Waiting


def waiting(id: str) -> Waiting:
    return Waiting(Request(Asked(id, 60, 20), id.partition("/")[0], "light"))


@pytest.mark.parametrize(
    ("rule", "order"),
    [(FirstCome, ["a/0", "a/1", "a/2", "b/0", "b/1", "c/0"]), (RoundRobin, ["a/0", "b/0", "c/0", "a/1", "b/1", "a/2"])],
)
def test_a_rule_keeps_its_order(rule: Callable[[], Rule], order: list[str]) -> None:
    line = rule()
    for each in ("a/0", "a/1", "a/2", "b/0", "b/1", "c/0"):
        line.put(waiting(each))

    assert [line.take().request.asked.id for _ in order] == order


def test_in_round_robin_an_agent_that_comes_back_is_behind_those_that_wait() -> None:
    line = RoundRobin()
    for each in ("a/0", "b/0", "b/1"):
        line.put(waiting(each))

    taken = [line.take().request.asked.id]
    line.put(waiting("a/1"))
    taken += [line.take().request.asked.id for _ in range(3)]

    assert taken == ["a/0", "b/0", "a/1", "b/1"]
