"""Classes are weights in the fair queue: what it promises holds with them, also for questions of a lower class."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from agentos.llm.queue.classes import CLASS_WEIGHTS, charge_factor, check_class, find_class, find_weight
from agentos.llm.queue.fair_tree import Path
from agentos.llm.settings import Account, QueuePath, Share
from agentos_sdk.errors import PermissionDenied
from agentos_sdk.values import LLMClass
from tests.llm.queue.test_fair_queue import TREE, Drive, PassedOver, chain
from tests.llm.scripted import Scripted
from tests.llm.test_line import crowd, open_line, work
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row

CLASSES: list[LLMClass] = list(CLASS_WEIGHTS)


def place(*accounts: tuple[str, LLMClass | None], weight: float = 1.0) -> QueuePath:
    """The path of the last one; ``weight`` is its own."""
    *above, (name, class_) = accounts
    return (*(Account(each, Share(class_=of)) for each, of in above), Account(name, Share(weight, class_=class_)))


@settings(max_examples=rounds(60))
@given(st.randoms(use_true_random=True), st.integers(1, 3), st.booleans())
def test_no_agent_that_waits_is_passed_over_by_more_than_the_stated_bound(
    random: Random, workers: int, overestimated: bool
) -> None:
    drive, passed = Drive(workers), PassedOver()
    given_classes = {path: random.choice([*CLASSES, None]) for path in TREE}
    sizes = dict(zip(TREE, [1, 7, 40, 100, 1000, 20], strict=True))
    places: dict[Path, QueuePath] = {}
    for path in TREE:
        share = Share(random.choice([0.5, 1, 3]), class_=given_classes[path])
        places[path] = (*places.get(path[:-1], ()), Account(path[-1], share))
        drive.queue.set_weight(path, find_weight(places[path]))
    lowered = {path: [one for one in CLASSES if charge_factor(places[path], one) >= 1] for path in TREE}
    charges = {path: sizes[path] * max(charge_factor(places[path], one) for one in lowered[path]) for path in TREE}
    busy = random.sample(TREE, random.randint(2, len(TREE)))

    def largest(node: Path) -> float:
        return max(charge for path, charge in charges.items() if node in chain(path))

    def weight(node: Path) -> float:
        return find_weight(places[node]) if node in places else 1.0

    for _ in range(300):
        step = random.choice(["put", "put", "start", "start", "end", "end"])
        if step == "put":
            path = random.choice(busy)
            factor = int(charge_factor(places[path], random.choice(lowered[path])))
            final, other = (factor * random.choice([1, sizes[path], random.randint(1, sizes[path])]) for _ in range(2))
            drive.put(path, final, other if overestimated else min(final, other))
            passed.put(path)
        elif step == "start" and (ticket := drive.start()):
            passed.chosen(ticket)
        elif step == "end" and drive.in_flight:
            drive.end(random.choice([0, -1]))
        for me, others in passed.by.items():
            for other_one, tokens in others.items():
                theirs, mine = largest(other_one), largest(me) * weight(other_one) / weight(me)
                assert tokens <= workers * (theirs + mine + theirs * overestimated) + 1e-6


@settings(max_examples=rounds(60))
@given(
    st.lists(st.sampled_from(CLASSES), min_size=1, max_size=6),
    st.lists(st.integers(1, 50), min_size=20, max_size=20),
    st.randoms(use_true_random=True),
)
def test_the_wait_of_a_batch_agent_is_bounded_under_a_flood(
    flood: list[LLMClass], own: list[int], random: Random
) -> None:
    drive, most = Drive(), 200
    others = {(f"other{number}",): place((f"other{number}", class_)) for number, class_ in enumerate(flood)}
    for path, its_place in [*others.items(), (("batch",), place(("batch", "batch")))]:
        drive.queue.set_weight(path, find_weight(its_place))
    for cost in own:
        drive.put(("batch",), cost)
    bound = sum(most + max(own) * CLASS_WEIGHTS[class_] for class_ in flood)

    waited = 0
    while drive.queue.depth(("batch",)):
        for path in others:
            if not drive.queue.depth(path):
                drive.put(path, random.randint(1, most))
        ticket = drive.serve()
        assert ticket is not None
        waited = 0 if ticket.path == ("batch",) else waited + ticket.item
        assert waited <= bound


async def test_a_class_is_a_share_of_the_model(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for _ in range(63):
            for class_ in CLASSES:
                await all_of_them.ask(place((class_, class_)))

    first = all_of_them.answered[:63]
    assert [first.count(class_) for class_ in CLASSES] == [pytest.approx(each, abs=1) for each in (48, 12, 3)]


async def test_weight_and_class_are_multiplied(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for _ in range(20):
            await all_of_them.ask(place(("heavy", "batch"), weight=4.0))
            await all_of_them.ask(place(("plain", None)))

    assert all_of_them.answered[:20].count("heavy") == pytest.approx(10, abs=1)


async def test_an_agent_that_asks_only_batch_questions_gets_what_a_batch_agent_gets(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for _ in range(30):
            await all_of_them.ask(place(("plain", None)))
            await all_of_them.ask(place(("humble", None)), class_="batch")

    assert all_of_them.answered[:30].count("humble") == pytest.approx(6, abs=1)


async def test_the_question_that_waits_says_its_class(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        await all_of_them.ask(place(("first", None)))
        await all_of_them.ask(place(("quick", "interactive")))
        await all_of_them.ask(place(("quick", "interactive")), class_="batch")
        await all_of_them.ask(place(("plain", None)))

        found = [(one.queue_path[-1].name, one.class_, state) for one, state, _ in line.list_waiting()]

    assert sorted(found) == [
        ("plain", "normal", "ready"),
        ("quick", "batch", "ready"),
        ("quick", "interactive", "ready"),
    ]


async def test_a_spawned_agent_is_weighed_beside_its_parents_own_questions(autojump_clock: MockClock) -> None:
    parent = ("parent", "batch")
    async with open_line(Scripted([work(1.0)])) as line, crowd(line) as all_of_them:
        for _ in range(10):
            await all_of_them.ask(place(parent))  # type: ignore[arg-type]
            await all_of_them.ask(place(parent, ("child", None)))  # type: ignore[arg-type]

    assert all_of_them.answered[:10].count("child") == pytest.approx(5, abs=1)


def test_a_class_is_that_of_the_nearest_account_that_has_one() -> None:
    assert find_class(()) == "normal"
    assert find_class(place(("a", None))) == "normal"
    assert find_class(place(("group", "batch"), ("a", None))) == "batch"
    assert find_class(place(("group", "batch"), ("a", "interactive"))) == "interactive"


@each_row("own", CLASSES)
@each_row("asked", CLASSES)
def test_a_class_above_ones_own_is_refused_by_the_name_of_the_field(own: LLMClass, asked: LLMClass) -> None:
    if CLASSES.index(asked) >= CLASSES.index(own):
        check_class(asked, "class", place(("a", own)))
        return
    with pytest.raises(PermissionDenied, match=f"^class: {asked} is above your own class, which is {own}$"):
        check_class(asked, "class", place(("a", own)))
