"""The fair queue: what it promises in tokens, driven as workers would drive it, and its counters against a model."""

from collections import Counter, defaultdict
from random import Random

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentos.llm.queue.fair_queue import MIN_CHARGE, FairQueue, QueueFull, jain_index, weighted_cost
from agentos.llm.queue.fair_tree import Path, Ticket
from agentos_sdk.values import Waits
from tests.support.runs.rounds import rounds

LANES = ("one", "two")
TREE: list[Path] = [("a",), ("b",), ("t",), ("t", "x"), ("t", "y"), ("t", "x", "z")]


def chain(path: Path) -> list[Path]:
    """What competes at each level so that this agent is chosen; the last is its own line."""
    return [path[:length] for length in range(1, len(path) + 1)] + [(*path, "")]


@define
class Drive:
    """Some workers, in steps. A request is what it costs in the end; the queue hears of that when it ends."""

    workers: int = 1
    queue: FairQueue[int] = field(factory=lambda: FairQueue[int](10**6, 10**6))
    in_flight: list[Ticket[int]] = field(factory=list)
    got: Counter[Path] = field(factory=Counter)
    chosen: list[Ticket[int]] = field(factory=list)

    def put(self, path: Path, final: int, estimate: int | None = None) -> Ticket[int]:
        return self.queue.put(path, final, final if estimate is None else estimate, 0.0)

    def start(self) -> Ticket[int] | None:
        if len(self.in_flight) >= self.workers or (ticket := self.queue.take(0.0)) is None:
            return None
        self.in_flight.append(ticket)
        self.chosen.append(ticket)
        return ticket

    def end(self, which: int = 0) -> None:
        ticket = self.in_flight.pop(which % len(self.in_flight))
        self.queue.charge(ticket, ticket.item)
        self.got[ticket.path] += ticket.item

    def serve(self) -> Ticket[int] | None:
        ticket = self.start()
        if ticket is not None:
            self.end()
        return ticket


@define
class PassedOver:
    """What each sibling's chosen requests cost while somebody waits for his next turn, at every level of the tree."""

    waiting: Counter[Path] = field(factory=Counter)
    by: defaultdict[Path, Counter[Path]] = field(factory=lambda: defaultdict(Counter))

    def put(self, path: Path) -> None:
        for node in chain(path):
            if not self.waiting[node]:
                self.by[node].clear()
            self.waiting[node] += 1

    def left(self, path: Path) -> None:
        for node in chain(path):
            self.waiting[node] -= 1

    def chosen(self, ticket: Ticket[int]) -> None:
        self.left(ticket.path)
        for node in chain(ticket.path):
            self.by[node].clear()
            for other in self.waiting:
                if self.waiting[other] and other != node and other[:-1] == node[:-1]:
                    self.by[other][node] += ticket.item


LARGEST = dict(zip(TREE, [1, 7, 40, 100, 1000, 20], strict=True))


def largest(node: Path) -> int:
    return max(size for path, size in LARGEST.items() if node in chain(path))


@settings(max_examples=rounds(60))
@given(st.randoms(use_true_random=True), st.integers(1, 3), st.booleans(), st.booleans())
def test_no_waiting_request_is_passed_over_by_more_than_the_stated_bound(
    random: Random, workers: int, overestimated: bool, weighted: bool
) -> None:
    drive, passed = Drive(workers), PassedOver()
    waiting: list[Ticket[int]] = []
    weights = {path: random.choice([0.5, 1, 2, 3]) if weighted else 1 for path in TREE}
    for path, weight in weights.items():
        drive.queue.set_weight(path, weight)
    busy = random.sample(TREE, random.randint(2, len(TREE)))

    for _ in range(300):
        step = random.choice(["put", "put", "start", "start", "end", "end", "withdraw"])
        if step == "put":
            path = random.choice(busy)
            final, other = (random.choice([1, LARGEST[path], random.randint(1, LARGEST[path])]) for _ in range(2))
            waiting.append(drive.put(path, final, other if overestimated else min(final, other)))
            passed.put(path)
        elif step == "start" and (ticket := drive.start()):
            passed.chosen(ticket)
        elif step == "end" and drive.in_flight:
            drive.end(random.choice([0, -1]))
        elif step == "withdraw" and waiting and drive.queue.withdraw(gone := random.choice(waiting[-5:])):
            passed.left(gone.path)
        for me, others in passed.by.items():
            for other_one, tokens in others.items():
                relative = weights.get(other_one, 1) / weights.get(me, 1)
                theirs, mine = largest(other_one), largest(me) * relative
                assert tokens <= workers * (theirs + mine + theirs * overestimated) + 1e-6


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 30)), min_size=1, max_size=80),
    st.sampled_from([(1.0, 1.0), (1.0, 3.0)]),
)
def test_two_agents_that_always_have_work_share_by_weight_within_one_request(
    sizes: list[tuple[int, int]], weights: tuple[float, float]
) -> None:
    drive, agents = Drive(), [("a",), ("b",)]
    for agent, weight in zip(agents, weights, strict=True):
        drive.queue.set_weight(agent, weight)
    for of_a, of_b in sizes:
        drive.put(("a",), of_a)
        drive.put(("b",), of_b)
    one = [max(each[side] for each in sizes) / weight for side, weight in enumerate(weights)]

    while drive.queue.depth(("a",)) and drive.queue.depth(("b",)):
        drive.serve()

        a, b = (drive.got[agent] / weight for agent, weight in zip(agents, weights, strict=True))
        assert abs(a - b) <= max(one) + 1e-6


LIGHT: list[Path] = [(f"light{number}",) for number in range(8)]
HUGE, FLOOD, SMALL = 20_000, 500, 50


@settings(max_examples=rounds(40))
@given(st.data())
def test_a_flooder_and_huge_prompts_hold_up_eight_light_agents_by_no_more_than_the_bound(data: st.DataObject) -> None:
    drive = Drive()
    for size in data.draw(st.lists(st.integers(1, FLOOD), min_size=100, max_size=100)):
        drive.put(("flooder",), size)
    for size in data.draw(st.lists(st.integers(1, HUGE), min_size=30, max_size=30)):
        drive.put(("huge",), size)
    came: dict[Path, tuple[Ticket[int], int]] = {}  # with how many had been chosen before
    bound = (HUGE + SMALL) + (FLOOD + SMALL) + 7 * (SMALL + SMALL)

    for asking in data.draw(st.lists(st.sets(st.sampled_from(LIGHT)), min_size=40, max_size=40)):
        for light in sorted(asking - came.keys()):
            came[light] = drive.put(light, data.draw(st.integers(1, SMALL))), len(drive.chosen)
        drive.serve()
        for light, (ticket, before) in list(came.items()):
            ahead = sum(each.item for each in drive.chosen[before:] if each is not ticket)
            if ticket.state == "chosen":
                del came[light]
            assert ahead <= bound or ticket.state == "chosen"


def test_light_agents_go_before_the_flood_that_came_before_them() -> None:
    drive = Drive()
    for _ in range(100):
        drive.put(("flooder",), 500)
    drive.serve()

    for light in LIGHT:
        drive.put(light, 50)

    assert [drive.queue.take(0.0).path for _ in range(9)] == [("flooder",), *LIGHT]  # type: ignore[union-attr]


@given(st.integers(0, 60), st.integers(1, 60), st.lists(st.integers(1, 100), min_size=30, max_size=30), st.booleans())
def test_idling_saves_nothing_up(alone: int, gap: int, sizes: list[int], idler_first: bool) -> None:
    drive = Drive()
    drive.put(("idler",), 1)
    drive.serve()
    for number in range(alone):
        drive.put(("busy",), 1 + number * gap % 100)
        drive.serve()
    drive.got.clear()

    for size in sizes:
        drive.put(("idler",) if idler_first else ("busy",), size)
        drive.put(("busy",) if idler_first else ("idler",), size)

    while drive.queue.depth(("busy",)) and drive.queue.depth(("idler",)):
        drive.serve()
        assert drive.got[("idler",)] - drive.got[("busy",)] <= 2 * 100


@given(st.lists(st.permutations(range(5)), min_size=1, max_size=6), st.integers(1, 100), st.booleans())
def test_equal_agents_see_plain_first_come_first_served(rounds: list[list[int]], size: int, at_once: bool) -> None:
    drive, came = Drive(), []

    for each in rounds:
        came += [drive.put((f"agent{number}",), size) for number in each]
        while not at_once and drive.serve():
            pass
    while drive.serve():
        pass

    assert drive.chosen == came


def test_a_branch_has_one_share_however_many_it_spawns() -> None:
    drive = Drive()
    members = [("team",), *[("team", f"worker{number}") for number in range(9)]]
    for path in [*members * 20, *[("loner",)] * 200]:
        drive.put(path, 10)

    for _ in range(200):
        drive.serve()

    assert drive.got[("loner",)] == 1000
    assert {drive.got[member] for member in members} == {100}


def test_a_branch_shares_its_weight_among_its_members() -> None:
    drive = Drive()
    drive.queue.set_weight(("team",), 3)
    drive.queue.set_weight(("team", "x"), 2)
    for path in [("team", "x"), ("team", "y"), ("loner",)] * 200:
        drive.put(path, 10)

    for _ in range(120):
        drive.serve()

    assert drive.got == {("team", "x"): 600, ("team", "y"): 300, ("loner",): 300}


class QueueModel(RuleBasedStateMachine):
    """Requests come out once or never; counters move by what is charged, and by lifting, which only raises them."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(per_agent=4, in_all=12)
        self.waiting: list[Ticket[int]] = []
        self.in_flight: list[Ticket[int]] = []
        self.weights: dict[Path, float] = {("a",): 3.0, ("t",): 0.5}
        for path, weight in self.weights.items():
            self.queue.set_weight(path, weight)
        self.came = 0
        self.closed: set[str] = set()

    def order(self) -> list[Ticket[int]]:
        return [ticket for _, ticket in self.queue.order()]

    def eligible(self) -> list[Ticket[int]]:
        return [ticket for ticket in self.waiting if ticket.lane not in self.closed]

    def counters(self) -> dict[Path, float]:
        found: dict[Path, float] = {}
        for path in TREE:
            for branch in self.queue._branches(path):
                found |= {path: branch.served, (*path, ""): branch.own.served}
        return found

    def assert_only_charged(self, before: dict[Path, float], ticket: Ticket[int], tokens: float) -> None:
        for node, counter in self.counters().items():
            expected = tokens / self.weights.get(node, 1.0) if node in chain(ticket.path) else 0
            assert counter - before[node] == pytest.approx(expected)

    @rule(path=st.sampled_from(TREE), cost=st.integers(0, 100), lane=st.sampled_from(LANES))
    def put(self, path: Path, cost: int, lane: str) -> None:
        own = sum(ticket.path == path for ticket in self.waiting)
        competing = sum(ticket.path == path for ticket in self.eligible())
        before = self.counters()
        if own == 4 or (len(self.waiting) >= 12 and own):
            with pytest.raises(QueueFull) as caught:
                self.queue.put(path, 0, cost, 0.0, lane=lane)
            assert caught.value.details["which"] == ("agent" if own == 4 else "all")
            assert self.counters() == before
            return
        self.waiting.append(self.queue.put(path, self.came, cost, 0.0, lane=lane))
        self.came += 1
        for node, counter in self.counters().items():
            assert counter >= before.get(node, 0)
            assert counter == before.get(node, 0) or (node in chain(path) and competing == 0)

    @rule(lane=st.sampled_from(LANES))
    def close(self, lane: str) -> None:
        before = self.counters()
        self.queue.close(lane)
        self.closed.add(lane)
        assert self.counters() == before

    @rule(lane=st.sampled_from(LANES))
    def open(self, lane: str) -> None:
        before = self.counters()
        self.queue.open(lane)
        self.closed.discard(lane)
        assert all(counter >= before[node] for node, counter in self.counters().items())

    @rule()
    def take(self) -> None:
        expected = next(iter(self.order()), None)
        before = self.counters()
        ticket = self.queue.take(0.0)
        assert ticket is expected
        if ticket is None:
            assert not self.eligible()
        else:
            self.waiting.remove(ticket)
            self.in_flight.append(ticket)
            self.assert_only_charged(before, ticket, max(ticket.cost, MIN_CHARGE))

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 20), used=st.integers(0, 150), ended=st.booleans())
    def charge(self, which: int, used: int, ended: bool) -> None:
        ticket = self.in_flight[which % len(self.in_flight)]
        before, charged = self.counters(), ticket.charged
        self.queue.charge(ticket, used)
        assert ticket.charged == max(used, MIN_CHARGE)
        self.assert_only_charged(before, ticket, ticket.charged - charged)
        if ended:
            self.in_flight.remove(ticket)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 20))
    def withdraw(self, which: int) -> None:
        ticket = self.waiting.pop(which % len(self.waiting))
        before = self.counters()
        assert self.queue.withdraw(ticket)
        assert not self.queue.withdraw(ticket)
        assert self.counters() == before
        with pytest.raises(ValueError, match="withdrawn"):
            self.queue.charge(ticket, 5)

    @rule(path=st.sampled_from([("b",), ("t", "x")]))
    def remove(self, path: Path) -> None:
        gone = self.queue.remove(path)
        beneath = [ticket for ticket in self.waiting if ticket.path[: len(path)] == path]
        assert sorted(gone, key=lambda each: each.number) == beneath
        self.waiting = [ticket for ticket in self.waiting if ticket not in beneath]
        self.in_flight = [ticket for ticket in self.in_flight if ticket.path[: len(path)] != path]

    @invariant()
    def everything_that_waits_has_a_place(self) -> None:
        order = self.order()
        assert sorted(order, key=lambda each: each.number) == self.eligible()
        assert {*order, *self.queue.parked()} == {*self.waiting}
        assert [place for place, _ in self.queue.order()] == list(range(1, len(order) + 1))
        assert len(self.queue) == len(self.waiting)
        for path in TREE:
            mine = [ticket for ticket in self.waiting if ticket.path == path]
            assert [ticket for ticket in order if ticket.path == path] == [each for each in mine if each in order]
            assert self.queue.depth(path) == len(mine)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=rounds(60), stateful_step_count=40)


@given(st.lists(st.tuples(st.sampled_from(TREE), st.integers(1, 100)), max_size=40))
def test_requests_come_in_the_order_that_was_foretold_if_nothing_happens(came: list[tuple[Path, int]]) -> None:
    drive = Drive()
    for path, size in came:
        drive.put(path, size)

    foretold = [ticket for _, ticket in drive.queue.order()]
    while drive.serve():
        pass

    assert drive.chosen == foretold


def test_what_is_removed_in_flight_is_still_charged_above() -> None:
    drive = Drive()
    drive.put(("t", "x"), 1000, 1)
    drive.start()
    drive.put(("t", "y"), 10)
    drive.put(("b",), 10)

    drive.queue.remove(("t", "x"))
    drive.end()

    assert [ticket.path for _, ticket in drive.queue.order()] == [("b",), ("t", "y")]


def test_an_overcharge_of_one_agent_holds_no_other_agent_up_for_long() -> None:
    drive = Drive()
    drive.put(("huge",), 1, 1000)
    drive.start()
    drive.put(("huge",), 1, 1000)
    drive.put(("a",), 1)  # lifted to a counter that was charged too much
    drive.end()
    for _ in range(100):
        drive.put(("b",), 1)

    for _ in range(3):
        drive.serve()

    assert [ticket.path for ticket in drive.chosen] == [("huge",), ("huge",), ("a",), ("b",)]


def test_an_agent_with_requests_that_cost_nothing_is_not_always_next() -> None:
    drive = Drive()
    for _ in range(10):
        drive.put(("free",), 0)
    drive.put(("b",), 1)
    drive.put(("b",), 1)

    assert [ticket.path for _ in range(4) if (ticket := drive.serve())] == [("free",), ("b",), ("free",), ("b",)]


def test_a_full_line_still_takes_the_only_request_of_an_agent() -> None:
    queue: FairQueue[int] = FairQueue(per_agent=3, in_all=4)
    for path in [("a",), ("a",), ("b",), ("b",)]:
        queue.put(path, 0, 1, 0.0)

    queue.put(("c",), 0, 1, 0.0)

    with pytest.raises(QueueFull, match="some of yours") as caught:
        queue.put(("c",), 0, 1, 0.0)
    assert (caught.value.code, caught.value.details["which"]) == ("busy", "all")
    assert len(queue) == 5


def test_waits_are_told_by_percentile() -> None:
    queue: FairQueue[int] = FairQueue(per_agent=1000)
    assert queue.wait_times(("a",)) is None
    for second in range(300):
        queue.put(("a",), 0, 1, float(second))

    for _ in range(300):
        queue.take(300.0)

    assert queue.wait_times(("a",)) == Waits(256, 128_000.0, 244_000.0)
    assert queue.wait_times(("b",)) is None


def test_jains_index_is_one_when_all_got_the_same_and_one_nth_when_one_got_everything() -> None:
    assert jain_index([]) == jain_index([0, 0]) == jain_index([5]) == jain_index([7, 7, 7]) == 1
    assert jain_index([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain_index([1, 2, 3]) == pytest.approx(36 / 42)


def test_fairness_counts_the_agents_that_waited_all_the_time_by_their_weight() -> None:
    drive = Drive()
    drive.queue.set_weight(("heavy",), 3)
    for number in range(2000):
        for size, agent in [(100, "heavy"), (10, "small"), (1 + number % 300, "mixed")]:
            drive.put((agent,), size)
    drive.put(("now and then",), 1)
    mark = drive.queue.snapshot()

    for _ in range(1000):
        drive.serve()
    drive.put(("now and then",), 1)

    assert drive.queue.fairness(mark) > 0.99
    assert jain_index([drive.got[("heavy",)], drive.got[("small",)], drive.got[("mixed",)]]) < 0.8


def test_a_weight_is_a_number_above_nothing() -> None:
    for weight in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            FairQueue[int]().set_weight(("a",), weight)


def test_a_token_that_comes_out_counts_for_two_that_go_in() -> None:
    assert weighted_cost(100) == 100
    assert weighted_cost(100, 30) == 160


def test_a_parked_request_leaves_its_turn_to_others_and_finds_its_place_again() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("paused 1", "other 1", "paused 2"):
        queue.put(("a",), item, 10, 0.0, lane=item[:-2])
    queue.put(("b",), "b", 10, 0.0, lane="other")

    queue.close("paused")
    first = [ticket.item for ticket in iter(lambda: queue.take(0.0), None)]
    queue.put(("a",), "other 2", 10, 0.0, lane="other")
    queue.open("paused")
    second = [ticket.item for ticket in iter(lambda: queue.take(0.0), None)]

    assert first == ["other 1", "b"]
    assert second == ["paused 1", "paused 2", "other 2"]


def test_an_agent_that_is_parked_saves_nothing_up() -> None:
    drive = Drive()
    for _ in range(20):
        drive.queue.put(("parked",), 10, 10, 0.0, lane="paused")
    drive.queue.close("paused")
    for _ in range(200):
        drive.put(("busy",), 10)
    for _ in range(100):
        drive.serve()

    drive.queue.open("paused")
    for _ in range(20):
        drive.serve()

    assert drive.got == {("busy",): 1100, ("parked",): 100}


def test_what_is_parked_counts_towards_the_bounds() -> None:
    queue: FairQueue[int] = FairQueue(per_agent=3, in_all=4)
    queue.close("paused")
    for _ in range(3):
        queue.put(("a",), 0, 1, 0.0, lane="paused")

    with pytest.raises(QueueFull, match="3 requests of yours"):
        queue.put(("a",), 0, 1, 0.0, lane="other")

    assert (len(queue), [*queue.order()], queue.depth(("a",))) == (3, [], 3)


def test_what_is_parked_leaves_with_its_agent() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.close("paused")
    withdrawn, removed = (queue.put((name,), 0, 1, 0.0, lane="paused") for name in "ab")

    assert queue.withdraw(withdrawn)
    assert queue.remove(("b",)) == [removed]

    queue.open("paused")
    assert (len(queue), queue.take(0.0)) == (0, None)
