"""A queue with turns: each owner's items in their order, and no owner behind all of another's."""

import trio
import trio.testing

from agentos.kernel.wire.turns import Turns


def test_one_with_many_items_does_not_stand_before_anothers_first() -> None:
    turns: Turns[str, int] = Turns()
    for number in range(100):
        turns.add("many", number)
    turns.add("one", 0)

    taken = [turns.take() for _ in range(len(turns))]

    assert taken[:3] == [("many", 0), ("one", 0), ("many", 1)]
    assert [number for owner, number in taken if owner == "many"] == list(range(100))


def test_one_that_adds_again_and_again_gets_every_other_turn() -> None:
    turns: Turns[str, int] = Turns()
    for number in range(3):
        turns.add("patient", number)
    owners = []

    for number in range(6):
        turns.add("greedy", number)
        owners.append((turns.take())[0])

    assert owners.count("patient") == 3


async def test_what_is_taken_makes_room_for_the_next() -> None:
    turns: Turns[str, int] = Turns()
    turns.add("it", 1)
    seen = []

    async def wait_for_room() -> None:
        await turns.wait_taken()
        seen.append(len(turns))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.take() == ("it", 1)

    assert seen == [0]


def test_what_is_cleared_is_given_back() -> None:
    turns: Turns[str, int] = Turns()
    turns.add("a", 1)
    turns.add("b", 2)

    assert sorted(turns.clear()) == [1, 2]
    assert len(turns) == 0
