"""What `agentos timers`, `ps` and `tree` say of agents that wait."""

import time
from typing import Any

from agentos.userland.cli.agents.agents import agent_lines, describe_wait
from agentos.userland.cli.agents.timers import is_scheduled, make_row
from agentos.userland.cli.times import format_time
from tests.support.runs.rows import each_row

DUE = 1_800_000_000.0


def agent(**more: Any) -> dict[str, Any]:
    idle = {"waiting": 0, "in_flight": 0, "position": None, "paused": 0}
    shown = {
        "id": 1,
        "name": "nightly",
        "pid": None,
        "state": "waiting",
        "restarts": 0,
        "uptime_ms": 0,
        "running": False,
    }
    more = {"next_at": DUE, "wakes_on": "cron 0 3 * * *", "end": None, "stopped_by": None, **more}
    return {**shown, "isolation": "standard", "supervisor": "root", "missing": [], "llm": idle, **more}


@each_row(
    ("fields", "text"),
    [
        ({}, f"waiting for {format_time(DUE)}"),
        ({"next_at": None}, "waiting for cron 0 3 * * *"),
        ({"wakes_on": "cron 0 3 * * *, message"}, f"waiting for message or {format_time(DUE)}"),
        ({"next_at": None, "wakes_on": "event STATE_CHANGED a, b"}, "waiting for event STATE_CHANGED a, b"),
        ({"state": "failed"}, f"failed, next {format_time(DUE)}"),
        ({"state": "running"}, "running"),
        ({"state": "stopped", "next_at": None, "stopped_by": "operator", "kept": True}, "stopped by operator, kept"),
        ({"state": "exited", "next_at": None, "wakes_on": None}, "exited"),
    ],
)
def test_the_state_says_when_a_waiting_agent_starts(fields: dict[str, Any], text: str) -> None:
    assert describe_wait(agent(**fields)) == text


def test_ps_shows_the_next_time() -> None:
    assert f"waiting for {format_time(DUE)}" in "\n".join(agent_lines([agent()], False, 200))


def test_a_row_of_timers_says_when_and_in_how_long() -> None:
    name, due, left, state, schedule, end = make_row(agent(end="exit status 1"), DUE - 90)

    assert (name, due, left, state) == (
        "nightly",
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(DUE)),
        "1m30s",
        "waiting",
    )
    assert (schedule, end) == ("cron 0 3 * * *", "exit status 1")


def test_a_stopped_schedule_is_listed_without_a_time_and_other_agents_are_not() -> None:
    stopped = agent(next_at=None, state="stopped", stopped_by="operator")

    assert is_scheduled(stopped)
    assert make_row(stopped, DUE)[1:4] == ["-", "-", "stopped by operator"]
    assert not is_scheduled(agent(next_at=None, wakes_on=None))
