"""The table of ``agentos top``: order, filter, tree, widths, and shares of the CPU."""

from typing import Any

import pytest

from agentos.userland.cli.top.table import Shares, View, add_usage, describe_fleet, list_rows, make_table

MIB = 1 << 20


def agent(number: int, name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number, "name": name, "state": "running", "supervisor": "root", "restarts": 0, "running": True,
        "parent": None, "uptime_ms": 5000, "llm": {"in_flight": 0, "waiting": 0}, "end": None, "stopped_by": None,
        "memory_bytes": None, "peak_memory_bytes": None, "cpu_seconds": None, "budget_renews_at": None, **more,
    }  # fmt: skip


FLEET = [
    agent(1, "small", memory_bytes=1 * MIB, cpu_seconds=9.0, restarts=2),
    agent(2, "large", memory_bytes=90 * MIB, cpu_seconds=1.0, supervisor="root/team"),
    agent(3, "hand", supervisor="root/team/large/hand", memory_bytes=5 * MIB, cpu_seconds=2.0),
    agent(4, "unknown"),
    agent(5, "over", state="exited", running=False, end="exit status 3"),
]


def names(view: View, shares: Shares | None = None) -> list[str]:
    return [row.name for row in list_rows(FLEET, view, shares or Shares())]


def test_the_largest_comes_first_and_what_is_not_known_last() -> None:
    assert names(View("memory")) == ["large", "hand", "small", "unknown"]
    assert names(View("cpu")) == ["small", "hand", "large", "unknown"]
    assert names(View("restarts")) == ["small", "hand", "large", "unknown"]
    assert names(View("name")) == ["hand", "large", "small", "unknown"]


def test_the_last_hours_tokens_and_costs_are_added_to_agents_and_sort_them() -> None:
    rows = [
        {"name": "small", "tokens": 10, "cost": 0.5},
        {"name": "small", "tokens": 5, "cost": 0.25},
        {"name": "large", "tokens": 900, "cost": None},
        {"name": "large", "tokens": 1, "cost": 9.0},
        {"name": "large/hand", "tokens": 20, "cost": 0.125},
    ]
    fleet = add_usage([*FLEET[:2], {**FLEET[2], "parent": 2}, FLEET[3]], rows)

    assert [one["hour_tokens"] for one in fleet] == [15, 901, 20, None]
    assert [one["hour_cost"] for one in fleet] == [0.75, None, 0.125, None]
    for sort, names in (
        ("cost", ["small", "hand", "large", "unknown"]),
        ("tokens", ["large", "hand", "small", "unknown"]),
    ):
        assert [row.name for row in list_rows(fleet, View(sort), Shares())] == names
    header, lines = make_table(list_rows(fleet, View("cost"), Shares()), Shares(), 200)
    assert header.split()[-2:] == ["TOKENS/H", "COST/H"]
    assert [line.split()[-2:] for line in lines] == [["15", "0.75"], ["20", "0.125"], ["901", "-"], ["-", "-"]]
    assert "TOKENS/H" not in make_table(list_rows(add_usage(FLEET, []), View(), Shares()), Shares(), 200)[0]


def test_the_filter_finds_names_states_and_supervisors_and_a_shows_ended_agents() -> None:
    assert names(View("name", text="TEAM")) == ["hand", "large"]
    assert names(View("name", text="exited", ended=True)) == ["over"]
    assert names(View("name", ended=True)) == ["hand", "large", "over", "small", "unknown"]


def test_the_tree_has_each_agent_below_its_supervisor_or_its_parent() -> None:
    assert names(View(tree=True)) == ["small", "team", "  large", "    hand", "unknown"]


def test_a_share_is_of_the_time_between_two_polls_of_one_life() -> None:
    shares = Shares()
    shares.update(FLEET, 10.0)
    assert shares.of(FLEET[0]) is None

    later = [{**FLEET[0], "cpu_seconds": 10.0}, {**FLEET[1], "restarts": 1, "cpu_seconds": 0.1}]
    shares.update(later, 12.0)
    assert shares.of(later[0]) == pytest.approx(50.0)
    assert shares.of(later[1]) is None


@pytest.mark.parametrize("width", [30, 40, 77, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = [*FLEET, agent(6, "n" * 60, state="stopped", stopped_by="x" * 50, running=False, end="e" * 300)]
    header, lines = make_table(list_rows(long, View(ended=True), Shares()), Shares(), width)

    assert max(map(len, [header, *lines])) <= width
    assert ("NOTE" in header) == (width == 200)


def test_what_is_unknown_is_a_dash_and_control_characters_are_escaped() -> None:
    evil = [agent(1, "a", state="failed", running=False, end="\x1b]0;title\x07")]
    _, [line] = make_table(list_rows(evil, View(), Shares()), Shares(), 200)

    assert line.split()[:7] == ["a", "failed", "-", "-", "-", "-", "0"]
    assert "\\x1b]0;title\\x07" in line


def test_the_fleet_is_counted_by_state() -> None:
    assert describe_fleet(FLEET) == "5 agents: 4 running, 1 exited"
    assert describe_fleet([]) == "0 agents"
