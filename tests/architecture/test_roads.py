"""How far a system call travels (``make roads``): bounds above today's figures, so that a detour is noticed."""

import pytest

from tests.architecture.roads import Road, trace_calls


@pytest.fixture(scope="module")
def roads() -> dict[str, Road]:
    return trace_calls()


@pytest.mark.parametrize(
    ("call", "functions", "files", "changes"), [("NOOP", 15, 8, 8), ("READ", 115, 30, 40), ("THINK", 200, 42, 60)]
)
def test_a_call_passes_few_functions_files_and_rooms(
    roads: dict[str, Road], call: str, functions: int, files: int, changes: int
) -> None:
    road = roads[call]

    assert len(road.functions) <= functions, road.functions
    assert road.files <= files
    assert road.changes <= changes, road.rooms
