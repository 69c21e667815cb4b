"""A caller in a loop is counted instead of written, and nobody else notices; nothing is lost in the count."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from agentos.services.audit.flood import MOST_KINDS, Flood

from .audited import DENIED, READ


def test_a_burst_is_written_and_then_so_many_a_second() -> None:
    flood = Flood(burst=5, steady=2.0)

    assert [flood.admits(READ, 0.0) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [flood.admits(READ, 1.0) for _ in range(4)] == [True] * 2 + [False] * 2


def test_what_goes_beyond_is_one_entry_that_says_who_and_how_many() -> None:
    flood = Flood(burst=1, steady=1.0)
    for _ in range(5322):
        flood.admits(DENIED, 10.0)

    [surplus] = flood.surplus(10.9)

    assert surplus.count == 5321
    assert surplus.entry == attrs.evolve(DENIED, about="and 5321 more of READ denied within 1 s")
    assert flood.surplus(11.9) == []


def test_a_flood_of_one_kind_leaves_the_others_of_the_same_caller_room() -> None:
    flood = Flood(burst=1, steady=0.0)

    assert flood.admits(READ, 0.0)
    assert not flood.admits(READ, 0.0)
    assert flood.admits(DENIED, 0.0)
    assert flood.admits(attrs.evolve(READ, agent=8), 0.0)


def test_too_many_kinds_to_be_kept_apart_are_counted_together() -> None:
    flood = Flood(burst=1, steady=0.0)

    admitted = [flood.admits(attrs.evolve(DENIED, agent=agent), 0.0) for agent in range(MOST_KINDS + 100)]

    assert sum(admitted) == MOST_KINDS + 1
    [several] = flood.surplus(1.0)
    assert (several.count, several.entry.agent, several.entry.name) == (99, 0, "several")


def test_who_has_been_quiet_is_forgotten() -> None:
    flood = Flood(burst=2, steady=1.0)
    for agent in range(MOST_KINDS):
        flood.admits(attrs.evolve(READ, agent=agent), 0.0)
    flood.surplus(10.0)

    assert flood.admits(attrs.evolve(READ, agent=-1), 10.0)
    assert not flood.counted


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3), st.booleans()), max_size=200))
def test_every_call_is_either_written_or_counted(calls: list[tuple[int, float, bool]]) -> None:
    flood, now, written, counted = Flood(burst=3, steady=1.0), 0.0, 0, 0

    for agent, pause, collect in calls:
        now += pause
        written += flood.admits(attrs.evolve(READ, agent=agent), now)
        if collect:
            counted += sum(each.count for each in flood.surplus(now))
    counted += sum(each.count for each in flood.surplus(now))

    assert written + counted == len(calls)
