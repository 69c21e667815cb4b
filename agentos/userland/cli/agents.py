"""``agentos ps``, ``tree``, ``kill``, ``pause``, ``resume``."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from agentos_sdk.opcodes import Op
from agentos_sdk.quantities import duration

from .common import (
    agent_fields,
    check_reply,
    format_table,
    json_option,
    kernel,
    plural,
    print_json,
    print_result,
    printable,
    socket_option,
)

STATES = {"running": "green", "paused": "yellow", "backing_off": "yellow", "failed": "red", "exited": "bright_black"}


@click.command()
@click.option("-a", "--all", "with_ended", is_flag=True, help="Also the agents that have ended.")
@json_option
@socket_option
def ps(socket_path: str | None, as_json: bool, with_ended: bool) -> None:
    """Show the agents: their state, restarts and place in the tree."""
    with kernel(socket_path) as client:
        agents = client.list_agents(all=True)
        model = client.metrics().get("metrics", {}).get("llm")  # an agent may not read metrics
    if as_json:
        print_json(agents)
        return
    shown = [agent for agent in agents if with_ended or agent["state"] != "exited"]
    asking = any(describe_requests(agent["llm"]) for agent in agents)
    rows = [
        [
            str(agent["id"]),
            agent["name"],
            str(agent["pid"] or "-"),
            agent["state"],
            str(agent["restarts"]),
            duration(agent["uptime_ms"] / 1000) if agent["running"] else "-",
            describe_isolation(agent),
            *([describe_requests(agent["llm"])] if asking else []),
            agent["supervisor"],
            *([describe_end(agent)] if with_ended else []),
        ]
        for agent in shown
    ]
    columns = ["ID", "NAME", "PID", "STATE", "RESTARTS", "UPTIME", "ISOLATION", *(["MODEL"] if asking else [])]
    header, *lines = format_table(rows, [*columns, "SUPERVISOR", *(["END"] if with_ended else [])])
    click.secho(header, bold=True)
    for agent, line in zip(shown, lines, strict=True):
        before, state, after = line.partition(f" {agent['state']} ")
        click.echo(before + click.style(state, fg=STATES.get(agent["state"])) + after)
    for state in model["providers"] if model else ():
        if state["state"] != "ok":
            click.echo(printable(describe_unavailable(state)))
    if model and model["waiting"] + model["in_flight"]:
        counts = f"{model['in_flight']} with the model, {model['waiting']} waiting"
        click.echo(f"questions: {counts}; fairness of the last minutes {model['fairness']:.2f} (Jain's index)")
    hidden = len(agents) - len(shown)
    if hidden:
        click.secho(f"({hidden} ended, see --all)", fg="bright_black")


@click.command()
@json_option
@socket_option
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
@click.argument("name")
@click.option("--grace", type=float, metavar="SECONDS", help="Between SIGTERM and SIGKILL; default: the agent's own.")
@json_option
@socket_option
def kill(name: str, grace: float | None, socket_path: str | None, as_json: bool) -> None:
    """Stop the agent NAME (or with that id) for good.

    The agents it spawned end before it.
    """
    with kernel(socket_path) as client:
        which = {"id": int(name)} if name.isdigit() else {"name": name}
        reply = check_reply(client.request(Op.KILL, {**which, "grace": grace}, wait=None))
    print_result(f"{name} has ended", reply, as_json)


@click.command()
@click.argument("name")
@json_option
@socket_option
def pause(name: str, socket_path: str | None, as_json: bool) -> None:
    """Stop the agent NAME where it is, until `agentos resume`."""
    with kernel(socket_path) as client:
        reply = check_reply(client.pause(**agent_fields(name)))
    print_result(f"{name} is paused", reply, as_json)


@click.command()
@click.argument("name")
@json_option
@socket_option
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
        state = click.style(node["state"], fg=STATES.get(node["state"]))
        pid = f" pid {node['pid']}" if node["pid"] else ""
        restarts = f", restarted {plural(node['restarts'], 'time')}" if node["restarts"] else ""
        return f"{name}  {state}{pid}{restarts}, {node['restart']}{node.get('kept', '')}"
    if "strategy" not in node:
        return f"{name}  {node['state']}"
    if node["strategy"] == "simple_one_for_one":
        return f"{name}  {node['strategy']}"
    return f"{name}  {node['strategy']}, {describe_intensity(node)}"


def describe_intensity(supervisor: dict[str, Any]) -> str:
    return f"at most {plural(supervisor['intensity'], 'restart')} in {supervisor['period']:g} s"


def describe_isolation(agent: dict[str, Any]) -> str:
    """The isolation level, and the layers that are missing: ``standard -cpu``."""
    return " ".join([agent["isolation"], *(f"-{layer}" for layer in agent["missing"])])


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


def describe_end(agent: dict[str, Any]) -> str:
    """How the last life of an agent that isn't running ended, in one line."""
    return printable(" ".join((agent["end"] or "").split())) if not agent["running"] else ""
