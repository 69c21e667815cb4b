"""A caller in a loop is counted instead of written, and nobody else notices; nothing is lost in the count."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.services.audit.flood import MAX_BUCKETS, TIDY_AT, EntryLimiter

from .audited import DENIED, READ


def test_a_burst_is_written_and_then_so_many_a_second() -> None:
    flood = EntryLimiter(burst=5, rate=2.0)

    assert [flood.admits(READ, 0.0) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [flood.admits(READ, 1.0) for _ in range(4)] == [True] * 2 + [False] * 2


def test_what_goes_beyond_is_one_entry_with_the_caller_and_the_count() -> None:
    flood = EntryLimiter(burst=1, rate=1.0)
    for _ in range(5322):
        flood.admits(DENIED, 10.0)

    [surplus] = flood.take_counted(10.9)

    assert surplus.count == 5321
    assert surplus.entry == replace(DENIED, about="and 5321 more of READ denied within 1 s")
    assert flood.take_counted(11.9) == []


def test_a_flood_of_one_kind_leaves_the_others_of_the_same_caller_room() -> None:
    flood = EntryLimiter(burst=1, rate=0.0)

    assert flood.admits(READ, 0.0)
    assert not flood.admits(READ, 0.0)
    assert flood.admits(DENIED, 0.0)
    assert flood.admits(replace(READ, agent=8), 0.0)


def test_all_agents_of_a_family_share_one_burst() -> None:
    flood = EntryLimiter(burst=2, rate=0.0)

    admitted = [flood.admits(replace(READ, agent=agent, family="agent 7"), 0.0) for agent in (7, 8, 9)]

    assert admitted == [True, True, False]
    assert flood.admits(replace(READ, agent=10, family="agent 10"), 0.0)


def test_callers_whose_burst_is_full_again_are_forgotten_unless_some_was_counted() -> None:
    flood = EntryLimiter(burst=1, rate=1.0)
    flood.admits(READ, 0.0)
    flood.admits(READ, 0.0)
    for agent in range(100, 100 + 10 * TIDY_AT):
        assert flood.admits(replace(READ, agent=agent), agent / 10)

    assert len(flood._buckets) <= TIDY_AT
    assert [counted.count for counted in flood.take_counted(1000.0)] == [1]


def test_too_many_kinds_to_be_kept_apart_are_counted_together() -> None:
    flood = EntryLimiter(burst=1, rate=0.0)

    admitted = [flood.admits(replace(DENIED, agent=agent), 0.0) for agent in range(MAX_BUCKETS + 100)]

    assert sum(admitted) == MAX_BUCKETS + 1
    [several] = flood.take_counted(1.0)
    assert (several.count, several.entry.agent, several.entry.name) == (99, 0, "several")


def test_an_agent_that_has_been_quiet_is_forgotten() -> None:
    flood = EntryLimiter(burst=2, rate=1.0)
    for agent in range(MAX_BUCKETS):
        flood.admits(replace(READ, agent=agent), 0.0)
    flood.take_counted(10.0)

    assert flood.admits(replace(READ, agent=-1), 10.0)
    assert not flood.counted


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3), st.booleans()), max_size=200))
def test_every_call_is_either_written_or_counted(calls: list[tuple[int, float, bool]]) -> None:
    flood, now, written, counted = EntryLimiter(burst=3, rate=1.0), 0.0, 0, 0

    for agent, pause, collect in calls:
        now += pause
        written += flood.admits(replace(READ, agent=agent), now)
        if collect:
            counted += sum(each.count for each in flood.take_counted(now))
    counted += sum(each.count for each in flood.take_counted(now))

    assert written + counted == len(calls)
