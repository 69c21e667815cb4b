"""``agentos ps``, ``tree``, ``kill``, ``pause``, ``resume``."""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.columns import cut_middle, fit_columns, format_table
from agentos.userland.cli.common import (
    agent_fields,
    check_reply,
    kernel,
    kernel_options,
    plural,
    print_json,
    print_result,
    printable,
)
from agentos.userland.cli.times import format_time
from agentos_sdk.encoding.quantities import duration
from agentos_sdk.opcodes import Op

from .resources import describe_memory, format_cpu

LIMIT_LAYERS = ("memory", "pids", "cpu", "disk")  # layers that are resource limits; the others separate the agent
ELASTIC = ("NAME", "MODEL", "SUPERVISOR")  # columns of `ps` whose cells may be cut
DROPPED_FIRST = ("ISOLATION", "SUPERVISOR", "UPTIME", "RESTARTS")  # where the terminal is too narrow
STATES = {
    "running": "green",
    "paused": "yellow",
    "backing_off": "yellow",
    "failed": "red",
    "stopped": "yellow",
    "exited": "bright_black",
}


@click.command()
@click.option("-a", "--all", "with_ended", is_flag=True, help="Also the agents that have ended.")
@click.option("-w", "--wide", is_flag=True, help="Cut nothing, however narrow the terminal.")
@kernel_options
def ps(socket_path: str | None, as_json: bool, with_ended: bool, wide: bool) -> None:
    """Show the agents: their state, restarts and place in the tree."""
    with kernel(socket_path) as client:
        agents = client.list_agents(all=True)
        model = client.metrics().get("metrics", {}).get("llm")  # an agent may not read metrics
    if as_json:
        print_json(agents)
        return
    shown = [agent for agent in agents if with_ended or agent["state"] != "exited"]
    narrow = not wide and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    width = shutil.get_terminal_size().columns if narrow else sys.maxsize
    for line in agent_lines(shown, with_ended, width):
        click.echo(line)
    notes = [*missing_layers(shown), *refusing_budgets(shown), *(model_notes(model) if model else ())]
    for note in [*health_notes(shown), *notes]:
        click.echo(printable(cut_middle(note, width)))
    hidden = len(agents) - len(shown)
    if hidden:
        click.secho(f"({hidden} ended, see --all)", fg="bright_black")


def agent_lines(agents: Sequence[Mapping[str, Any]], with_ended: bool, width: int) -> Iterator[str]:
    """The table of ``ps``, none of its lines longer than ``width``; an END for which there is no room is a line more.

    Names and places that are too long are cut in the middle; in a narrow terminal columns are left out.
    """
    columns = make_columns(agents)
    ends = [describe_end(agent) if with_ended else "" for agent in agents]
    whole = [list(row) for row in zip(*columns.values(), ends, strict=True)]
    if with_ended and max(map(len, format_table(whole, [*columns, "END"]))) <= width:
        first, *lines = format_table(whole, [*columns, "END"])
        ends = [""] * len(ends)
    else:
        columns = drop_columns(columns, width)
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        header, *rows = fit_columns(rows, list(columns), ELASTIC, width)
        first, *lines = format_table(rows, header)
    yield click.style(first[:width], bold=True)
    for agent, line, end in zip(agents, lines, ends, strict=True):
        before, state, after = line[:width].partition(f" {describe_wait(agent)} ")
        yield before + click.style(state, fg=STATES.get(agent["state"])) + after
        if end:
            yield "    " + cut_middle(end, width - 4)


def health_notes(agents: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each agent whose health command fails: ``web: 2 of 3 checks in a row failed: exit status 1``."""
    return [f"{agent['name']}: {agent['health']}" for agent in agents if agent.get("health")]


def make_columns(agents: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The cells of each column, by its header."""
    requests = [describe_requests(agent["llm"]) for agent in agents]
    columns = {
        "ID": [str(agent["id"]) for agent in agents],
        "NAME": [agent["name"] for agent in agents],
        "PID": [str(agent["pid"] or "-") for agent in agents],
        "STATE": [describe_wait(agent) for agent in agents],
        "RESTARTS": [str(agent["restarts"]) for agent in agents],
        "UPTIME": [duration(agent["uptime_ms"] / 1000) if agent["running"] else "-" for agent in agents],
        "MEM": [describe_memory(agent) for agent in agents],
        "CPU": [format_cpu(agent.get("cpu_seconds")) for agent in agents],
        "ISOLATION": [agent["isolation"] for agent in agents],
        "MODEL": requests,
        "SUPERVISOR": [agent["supervisor"] for agent in agents],
    }
    return columns if any(requests) else {name: cells for name, cells in columns.items() if name != "MODEL"}


def drop_columns(columns: Mapping[str, list[str]], width: int) -> dict[str, list[str]]:
    """The columns without those for which there is no room even if all elastic ones are cut."""
    kept = dict(columns)
    for name in DROPPED_FIRST:
        least = [
            max(len(head), min(max(map(len, cells), default=0), 8 if head in ELASTIC else width))
            for head, cells in kept.items()
        ]
        if sum(least) + 2 * (len(least) - 1) <= width:
            break
        kept.pop(name, None)
    return kept


def missing_layers(agents: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each layer that an agent was to have and doesn't: ``cpu not limited: worker, crawler``."""
    found: dict[str, list[str]] = {}
    for agent in agents:
        for layer in agent["missing"]:
            found.setdefault(layer, []).append(agent["name"])
    return [
        describe_missing(layer) + ("" if len(names) == len(agents) else f": {', '.join(names)}")
        for layer, names in found.items()
    ]


def describe_missing(layer: str) -> str:
    """The words for a layer that an agent was to have and doesn't; the kernel's log has the same."""
    return f"{layer} not limited" if layer in LIMIT_LAYERS else f"{layer} doesn't stand"


def refusing_budgets(agents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The agents whose budget has refused questions: ``budget used up until 12:00: worker, crawler``."""
    found: dict[float, list[str]] = {}
    for agent in agents:
        if (renews_at := agent.get("budget_renews_at")) is not None:
            found.setdefault(renews_at, []).append(agent["name"])
    for renews_at, names in sorted(found.items()):
        yield f"budget used up until {format_time(renews_at)}: {', '.join(names)}"


def model_notes(model: Mapping[str, Any]) -> Iterator[str]:
    """What holds up questions: models that are paused or down, and the queue."""
    for state in model["providers"]:
        if state["state"] != "ok":
            yield describe_unavailable(state)
    waiting, in_flight = len(model["waiting"]), len(model["in_flight"])
    if waiting + in_flight:
        counts = f"{in_flight} with the model, {waiting} waiting"
        yield f"questions: {counts}; fairness of the last minutes {model['jain']:.2f} (Jain's index)"


@click.command()
@kernel_options
def tree(socket_path: str | None, as_json: bool) -> None:
    """Draw the supervision tree."""
    with kernel(socket_path) as client:
        root = check_reply(client.tree())["tree"]
    if as_json:
        print_json(root)
        return
    for line in tree_lines(root, "", ""):
        click.echo(line)


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.option("--grace", type=float, metavar="SECONDS", help="Between SIGTERM and SIGKILL; default: the agent's own.")
@kernel_options
def kill(name: str, grace: float | None, socket_path: str | None, as_json: bool) -> None:
    """Stop the agent NAME (or with that id) for good.

    The agents it spawned end before it. One of the configuration file is stopped until `agentos start`.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.request(Op.KILL, {**agent_fields(name, by_id="id"), "grace": grace}, wait=None))
        stopped = any(
            agent["id"] == reply["agent_id"] and agent["stopped_by"] for agent in client.list_agents(all=True)
        )
    print_result(f"{name} is stopped" if stopped else f"{name} has ended", reply, as_json)


@click.command()
@click.argument("name", shell_complete=completed.agents)
@kernel_options
def pause(name: str, socket_path: str | None, as_json: bool) -> None:
    """Stop the agent NAME where it is, until `agentos resume`."""
    with kernel(socket_path) as client:
        reply = check_reply(client.pause(**agent_fields(name)))
    print_result(f"{name} is paused", reply, as_json)


@click.command()
@click.argument("name", shell_complete=completed.agents)
@kernel_options
def resume(name: str, socket_path: str | None, as_json: bool) -> None:
    """Let the paused agent NAME go on."""
    with kernel(socket_path) as client:
        reply = check_reply(client.resume(**agent_fields(name)))
    print_result(f"{name} is running", reply, as_json)


def tree_lines(node: dict[str, Any], first: str, rest: str) -> Iterator[str]:
    """One line for each node of the tree, with box characters."""
    yield first + describe(node)
    children = [child for child in map(merge_only_child, node.get("children", [])) if is_shown(child)]
    for child in children:
        last = child is children[-1]
        yield from tree_lines(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def merge_only_child(node: dict[str, Any]) -> dict[str, Any]:
    """Merge a spawned agent with the supervisor that has it as its only child."""
    children = node.get("children", [])
    if node["type"] == "supervisor" and [child["name"] for child in children] == [node["name"]]:
        return {**children[0], "kept": f", {describe_intensity(node)}" if children[0]["restart"] != "temporary" else ""}
    return node


def is_shown(node: dict[str, Any]) -> bool:
    """Whether the node is shown: all are but the supervisor of spawned agents while it has none."""
    return node["name"] != "spawned" or bool(node["children"])


def describe(node: dict[str, Any]) -> str:
    name = click.style(node["name"], bold=True)
    if node["type"] == "agent":
        state = click.style(describe_wait(node), fg=STATES.get(node["state"]))
        pid = f" pid {node['pid']}" if node["pid"] else ""
        failed = f", {plural(node['failed_checks'], 'failed check')}" if "failed_checks" in node else ""
        restarts = f", restarted {plural(node['restarts'], 'time')}" if node["restarts"] else ""
        return f"{name}  {state}{pid}{failed}{restarts}, {node['restart']}{node.get('kept', '')}"
    if "strategy" not in node:
        return f"{name}  {node['state']}"
    if node["strategy"] == "simple_one_for_one":
        return f"{name}  {node['strategy']}"
    counted = "escalation" if node["strategy"] == "one_for_one" else "restart"
    return f"{name}  {node['strategy']}, {describe_intensity(node, counted)}"


def describe_intensity(supervisor: dict[str, Any], counted: str = "restart") -> str:
    return f"at most {plural(supervisor['intensity'], counted)} in {supervisor['period']:g} s"


def describe_state(agent: Mapping[str, Any]) -> str:
    """The state, with the caller that stopped the agent: ``stopped by operator``, ``stopped by operator, kept``."""
    stopped = f" by {agent['stopped_by']}{', kept' if agent.get('kept') else ''}" if agent.get("stopped_by") else ""
    return f"{agent['state']}{stopped}"


def describe_wait(agent: Mapping[str, Any]) -> str:
    """The state, with what starts an agent next that isn't there: ``waiting for message or 2026-01-31 18:00:00``."""
    due = format_time(agent["next_at"]) if agent.get("next_at") is not None else None
    if agent["state"] == "failed" and due is not None:
        return f"{describe_state(agent)}, next {due}"
    if agent["state"] != "waiting" or not agent.get("wakes_on"):
        return describe_state(agent)
    _, _, start = agent["wakes_on"].partition(", ")  # behind a schedule
    reasons = [agent["wakes_on"]] if due is None else [start, due] if start else [due]
    return f"{describe_state(agent)} for {' or '.join(reasons)}"


def describe_requests(line: Mapping[str, Any]) -> str:
    """An agent's questions in the queue for the model: ``asks, 3 wait, 1 for a paused model, 2nd in line``."""
    parts = ["asks"] if line["in_flight"] else []
    if line["waiting"]:
        parts += [
            f"{line['waiting']} {'waits' if line['waiting'] == 1 else 'wait'}",
            *([f"{line['paused']} for a paused model"] if line["paused"] else []),
            *([f"{ordinal(line['position'])} in line"] if line["position"] else []),
        ]
    return ", ".join(parts)


def describe_unavailable(state: Mapping[str, Any]) -> str:
    """A model that can't be called now: ``gpt-5-mini by openai is paused until 12:00:09: Slow down (429)``."""
    until = f" until {time.strftime('%H:%M:%S', time.localtime(state['until']))}" if state["until"] else ""
    return f"{state['model']} by {state['name']} is {state['state']}{until}: {state['reason']}"


def ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{suffix}"


def describe_end(agent: Mapping[str, Any]) -> str:
    """How the last life of an agent that isn't running ended, in one line."""
    return printable(" ".join((agent["end"] or "").split())) if not agent["running"] else ""
