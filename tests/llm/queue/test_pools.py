"""Pools of the fair queue: places of their own, with fairness over all of them."""

from collections import Counter
from collections.abc import Mapping

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.llm.queue.fair_queue import FairQueue, jain_index
from agentos.llm.queue.fair_tree import Path, Ticket
from tests.support.runs.rounds import rounds

P, Q = "p", "q"


@define
class Pools:
    """Two pools with agents that always have a request waiting in each pool of theirs. A request is what it costs."""

    agents: Mapping[Path, str]
    places: int = 1
    queue: FairQueue[int] = field(factory=lambda: FairQueue[int](10**6, 10**6, (P, Q)))
    got: Counter[Path] = field(factory=Counter)
    in_flight: dict[str, list[Ticket[int]]] = field(factory=lambda: {P: [], Q: []})

    def __attrs_post_init__(self) -> None:
        for path, pools in self.agents.items():
            for pool in pools:
                self.put(path, pool)

    def put(self, path: Path, pool: str, cost: int = 10) -> None:
        self.queue.put(path, cost, cost, 0.0, lane=pool, pool=pool)

    def serve(self, pool: str) -> Path | None:
        """End the oldest request of a full pool, and begin the next one."""
        flying = self.in_flight[pool]
        if len(flying) >= self.places:
            ended = flying.pop(0)
            self.queue.charge(ended, ended.item)
            self.got[ended.path] += ended.item
        ticket = self.queue.take(0.0, pool)
        if ticket is None:
            return None
        flying.append(ticket)
        if pool in self.agents.get(ticket.path, ""):
            self.put(ticket.path, pool)
        return ticket.path


@pytest.mark.parametrize("places", [1, 4])
def test_agents_that_ask_everywhere_get_the_same_in_all(places: int) -> None:
    drive = Pools({("a",): P + Q, ("b",): P + Q, ("c",): P + Q}, places)
    begun = drive.queue.snapshot()

    for _ in range(300):
        drive.serve(P)
        drive.serve(Q)

    assert jain_index(drive.got.values()) >= 0.99
    assert drive.queue.fairness(begun) >= 0.99


@pytest.mark.parametrize("places", [1, 4])
def test_an_agent_that_asks_two_providers_gets_no_double_share(places: int) -> None:
    drive = Pools({("both",): P + Q, ("one",): P}, places)

    for _ in range(300):
        drive.serve(P)
        drive.serve(Q)

    assert jain_index([drive.got[("both",)], drive.got[("one",)]]) >= 0.99


def test_a_family_that_asks_through_several_members_gets_no_double_share() -> None:
    drive = Pools({("t", "x"): P, ("t", "y"): Q, ("one",): P})

    for _ in range(300):
        drive.serve(P)
        drive.serve(Q)

    family = drive.got[("t", "x")] + drive.got[("t", "y")]
    assert jain_index([family, drive.got[("one",)]]) >= 0.99


def test_use_of_a_pool_without_competitors_leaves_no_debt_in_another_pool() -> None:
    drive = Pools({("a",): P, ("b",): P, ("alone",): Q})
    for _ in range(100):
        drive.serve(P)
        for _ in range(50):
            drive.serve(Q)

    drive.put(("alone",), P)

    assert ("alone",) in [drive.serve(P) for _ in range(3)]


def test_waiting_for_a_slow_pool_gives_no_credit_in_a_fast_one() -> None:
    drive = Pools({("slow",): P, ("fast",): Q})
    for _ in range(1000):
        drive.serve(Q)

    for _ in range(20):
        drive.put(("slow",), Q)

    assert [drive.serve(Q) for _ in range(20)].count(("slow",)) == pytest.approx(10, abs=1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([P, Q]), st.integers(1, 50)), max_size=60))
@settings(max_examples=rounds(60))
def test_all_that_waits_in_a_pool_is_served_by_it_alone(asked: list[tuple[str, str, int]]) -> None:
    drive = Pools({})
    for name, pool, cost in asked:
        drive.put((name,), pool, cost)

    served = [drive.serve(P) for _ in range(len(asked) + 1)]

    assert Counter(path for path in served if path) == Counter((name,) for name, pool, _ in asked if pool == P)
    assert len(drive.queue) == sum(pool == Q for _, pool, _ in asked)


def test_a_request_that_moves_to_another_lane_keeps_its_place_there() -> None:
    queue: FairQueue[str] = FairQueue(pools=(P, Q))
    first = queue.put(("a",), "first", 1, 0.0, lane="one", pool=P)
    queue.put(("a",), "second", 1, 0.0, lane="two", pool=Q)
    queue.close("two")

    queue.move(first, "two", Q)

    assert (len(queue), [*queue.order()], queue.depth(("a",))) == (2, [], 2)
    queue.open("two")
    assert [ticket.item for _, ticket in queue.order()] == ["first", "second"]
    assert queue.take(0.0, Q) is first
