"""``agentos timers``: the agents that have a schedule, by their next time."""

import math
import time
from collections.abc import Mapping
from typing import Any

import click

from agentos.userland.cli.common import kernel, kernel_options, print_table
from agentos.userland.cli.times import format_time
from agentos_sdk.encoding.quantities import duration

from .agents import describe_end, describe_state

HEADER = ["NAME", "NEXT", "IN", "STATE", "SCHEDULE", "LAST END"]
NO_TIMER = 'no agent has a schedule; in the configuration file: schedule = { every = "1h" }'


@click.command()
@kernel_options
def timers(socket_path: str | None, as_json: bool) -> None:
    """List the agents with a schedule, by their next time."""
    with kernel(socket_path) as client:
        found = [agent for agent in client.list_agents(all=True) if is_scheduled(agent)]
    found.sort(key=lambda agent: (agent["next_at"] or math.inf, agent["name"]))
    now = time.time()
    print_table([make_row(agent, now) for agent in found], HEADER, ("NAME", "LAST END"), NO_TIMER, found, as_json)


def is_scheduled(agent: Mapping[str, Any]) -> bool:
    return agent.get("next_at") is not None or (agent.get("wakes_on") or "").startswith(("every ", "cron "))


def make_row(agent: Mapping[str, Any], now: float) -> list[str]:
    due = agent["next_at"]
    times = ["-", "-"] if due is None else [format_time(due), duration(round(max(0.0, due - now)))]
    return [agent["name"], *times, describe_state(agent), agent["wakes_on"], describe_end(agent)]
