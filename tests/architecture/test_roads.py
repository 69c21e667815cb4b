"""How far a system call travels (``make roads``): bounds above today's figures, so that a detour is noticed."""

import pytest

from tests.architecture.roads import Road, trace_calls


@pytest.fixture(scope="module")
def roads() -> dict[str, Road]:
    return trace_calls()


# READ and THINK pass one function for calls in the background and one for calls that ask a person, and a function or
# two of the poller more where the machine is busy. Five of READ's start its thread and bring back the result. Of
# THINK's, fourteen keep the question and its answer, twenty resolve the name of its model and choose the model, the
# provider and its key, seven look for a kept answer, a price, the model's context and the day that the use counts for,
# and five find its class and what that weighs.
@pytest.mark.parametrize(
    ("call", "functions", "files", "changes"), [("NOOP", 15, 7, 7), ("READ", 124, 31, 38), ("THINK", 272, 55, 68)]
)
def test_a_call_passes_few_functions_files_and_rooms(
    roads: dict[str, Road], call: str, functions: int, files: int, changes: int
) -> None:
    road = roads[call]

    assert len(road.functions) <= functions, road.functions
    assert road.files <= files
    assert road.changes <= changes, road.rooms


def test_what_a_call_does_not_pass_each_time_is_not_counted() -> None:
    table, handler, watch = ("kernel/table.py", "reply"), ("files.py", "read"), ("watch/memory.py", "count")

    road = Road.of([[table, watch, handler, table], [watch, table, handler], [table, handler]])

    assert road.functions == [table, handler]
    assert (road.rooms, road.files, road.changes) == (["kernel", "."], 2, 1)
