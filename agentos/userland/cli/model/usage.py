"""``agentos usage`` and ``agentos budget``: what agents have used by day, and the reset of a budget."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.agents.resources import UNKNOWN, format_bytes, format_cpu
from agentos.userland.cli.common import (
    check_reply,
    format_table,
    json_option,
    kernel,
    print_json,
    print_result,
    printable,
    socket_option,
)
from agentos.userland.cli.times import FORMS, read_time
from agentos_sdk.opcodes import Op


@click.command()
@click.argument("name", required=False, shell_complete=completed.agents)
@click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}; default: 7 days.")
@json_option
@socket_option
def usage(name: str | None, since: str | None, socket_path: str | None, as_json: bool) -> None:
    """Show what agents have used, by day.

    Tokens of the model, how many of them the vendor read from its prompt cache (cached), calls, cost, CPU time, and
    the peak memory of a life. Days are those of UTC. NAME is an agent or another owner of a budget.
    """
    fields = {"name": name, "since": read_time(since, "--since")}
    with kernel(socket_path) as client:
        reply = check_reply(client.request(Op.USAGE, fields))
    rows = reply["usage"]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"nothing was used{'' if name is None else f' by {printable(name)}'} in these days")
        return
    header = ["DAY", "NAME", "TOKENS", "CACHED", "CALLS", f"COST {reply['currency']}", "CPU", "PEAK"]
    for number, line in enumerate(format_table(usage_cells(rows), header)):
        click.echo(click.style(printable(line), bold=not number))


def usage_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            row["day"],
            row["name"],
            str(row["tokens"]),
            str(row["cache_read"]),
            str(row["calls"]),
            f"{row['cost']:.6g}" if row["calls"] and row["cost"] is not None else UNKNOWN,
            format_cpu(row["cpu_seconds"]),
            format_bytes(row["peak_memory_bytes"]),
        ]
        for row in rows
    ]


@click.group()
def budget() -> None:
    """Change the budgets of the model."""


@budget.command()
@click.argument("name", shell_complete=completed.agents)
@json_option
@socket_option
def reset(name: str, socket_path: str | None, as_json: bool) -> None:
    """Let NAME begin its budgets anew in their present windows.

    NAME is an agent, `group NAME` for a supervisor, or `kernel` for the budget of all agents.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.request(Op.USAGE, {"name": name, "reset": True}))
    print_result(f"the budgets of {name} begin anew", reply, as_json)
