"""How far a system call travels (``make roads``): bounds above today's figures, so that a detour is noticed."""

from math import ceil

import pytest

from tests.architecture.roads import Road, trace_calls

# Functions, files and changes of room, as ``make roads`` prints them. They may only fall; SPAWN's rose by four and
# two for ids that outlive the kernel and for what wakes agents, which looks at each event. Six of READ's start its
# thread and bring back the result. Of THINK's, fourteen keep the question and its answer, twenty resolve the name of
# its model and choose the model, the provider and its key, seven look for a kept answer, a price, the model's context
# and the day that the use counts for, and five find its class and what that weighs.
FIGURES = {
    "NOOP": (7, 5, 3),
    "READ": (77, 26, 25),
    "THINK": (245, 54, 49),
    "EXEC": (214, 58, 44),
    "SPAWN": (448, 103, 113),
}
MARGIN = 1.05  # EXEC and SPAWN meet a few functions more while the kernel still clears up after their forerunners


@pytest.mark.usefixtures("both_cores")  # beside twenty other processes EXEC meets what waits for the processor
def test_a_call_passes_few_functions_files_and_rooms() -> None:
    roads = trace_calls()

    passed = {call: (len(road.functions), road.files, road.changes) for call, road in roads.items()}
    bounds = {call: tuple(ceil(figure * MARGIN) for figure in figures) for call, figures in FIGURES.items()}
    assert passed.keys() == bounds.keys()
    longer = [call for call in bounds if any(map(int.__gt__, passed[call], bounds[call]))]
    assert not longer, (passed, [roads[call].functions for call in longer])


def test_what_a_call_does_not_pass_each_time_is_not_counted() -> None:
    table, handler, watch = ("kernel/table.py", "reply"), ("files.py", "read"), ("watch/memory.py", "count")

    road = Road.of([[table, watch, handler, table], [watch, table, handler], [table, handler]])

    assert road.functions == [table, handler]
    assert (road.rooms, road.files, road.changes) == (["kernel", "."], 2, 1)


def test_the_order_of_a_road_is_the_one_that_changes_the_room_least_often() -> None:
    one, other, another = ("a/x.py", "f"), ("b/y.py", "g"), ("a/x.py", "h")

    road = Road.of([[one, other, another], [one, another, other]])

    assert road.functions == [one, another, other]
