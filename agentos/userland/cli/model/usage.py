"""``agentos usage`` and ``agentos budget``: what agents have used, and the reset of a budget."""

import csv
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.agents.resources import UNKNOWN, format_bytes, format_cpu
from agentos.userland.cli.common import (
    check_reply,
    kernel,
    kernel_options,
    print_json,
    print_result,
    print_table,
    printable,
)
from agentos.userland.cli.times import FORMS, read_time
from agentos_sdk.opcodes import Op
from agentos_sdk.values import MAX_USAGE_ROWS

KEYS = {"agent": "name", "model": "model", "day": "day"}
AMOUNTS = ("tokens", "cache_read", "cache_creation", "calls", "cost", "cpu_seconds", "peak_memory_bytes")
OF_AGENTS = AMOUNTS[-2:]  # that no model has


def read_keys(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """The keys of ``--by``, each once, in their order."""
    words = list(dict.fromkeys(text.split(",")))
    if wrong := [word for word in words if word not in KEYS]:
        raise click.BadParameter(f"expected some of {', '.join(KEYS)} with commas between, got {wrong[0]!r}")
    return words


@click.command()
@click.argument("name", required=False, shell_complete=completed.agents)
@click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}; default: 7 days.")
@click.option("--by", "keys", metavar="KEYS", default="day,agent", show_default=True, callback=read_keys,
              help="A row for each agent, model or day, or several of them: agent,model,day.")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@kernel_options
def usage(
    name: str | None, since: str | None, keys: list[str], as_csv: bool, socket_path: str | None, as_json: bool
) -> None:
    """Show what agents have used, of which model and on which day.

    Tokens of the model, how many of them the vendor read from its prompt cache (cached), calls, cost, CPU time, and
    the peak memory of a life. Days are those of UTC; without them the rows that cost most come first. NAME is an agent
    or another owner of a budget.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    fields = {
        "name": name,
        "since": read_time(since, "--since"),
        "by_model": "model" in keys,
        "total": "day" not in keys,
    }
    with kernel(socket_path) as client:
        reply = check_reply(client.request(Op.USAGE, fields))
    if len(reply["usage"]) == MAX_USAGE_ROWS:
        click.echo(
            f"older rows than the newest {MAX_USAGE_ROWS:,} are left out: leave day out of --by, or name an agent",
            err=True,
        )
    rows = group_rows(reply["usage"], keys)
    if as_json:
        print_json(rows)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, [*(KEYS[key] for key in keys), *amounts_of(keys)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif not rows:
        click.echo(f"nothing was used{'' if name is None else f' by {printable(name)}'} in these days")
    else:
        print_rows(rows, keys, reply["currency"])


def amounts_of(keys: Sequence[str]) -> Sequence[str]:
    """The amounts that rows with these keys have."""
    return [amount for amount in AMOUNTS if "model" not in keys or amount not in OF_AGENTS]


def group_rows(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each combination of the keys; by day, else by cost and tokens, the largest first."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    names, amounts = [KEYS[key] for key in keys], amounts_of(keys)
    for row in rows:
        key = tuple(row[name] for name in names)
        values = {amount: row[amount] for amount in amounts}
        if key in groups:
            values = {amount: add(amount, groups[key][amount], values[amount]) for amount in amounts}
        groups[key] = {**dict(zip(names, key, strict=True)), **values}
    found = list(groups.values())
    if "day" in keys:
        return sorted(found, key=lambda row: row["day"])
    return sorted(found, key=lambda row: (row["cost"] or 0, row["tokens"]), reverse=True)


def add(amount: str, one: Any, other: Any) -> Any:
    """A sum, or the larger peak. A cost that isn't known makes the sum unknown; what wasn't counted counts nothing."""
    if amount == "cost":
        return None if one is None or other is None else one + other
    if one is None or other is None:
        return other if one is None else one
    return max(one, other) if amount == "peak_memory_bytes" else one + other


def print_rows(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], currency: str) -> None:
    heads = {"agent": "NAME", "model": "MODEL", "day": "DAY"}
    header = [*(heads[key] for key in keys), "TOKENS", "CACHED", "CALLS", f"COST {currency}"]
    if "model" not in keys:
        header += ["CPU", "PEAK"]
    cells = [[*(row[KEYS[key]] for key in keys), *usage_cells(row)] for row in rows]
    print_table(cells, header)


def usage_cells(row: Mapping[str, Any]) -> list[str]:
    of_model = [
        str(row["tokens"]),
        str(row["cache_read"]),
        str(row["calls"]),
        f"{row['cost']:.6g}" if row["calls"] and row["cost"] is not None else UNKNOWN,
    ]
    if "cpu_seconds" not in row:
        return of_model
    return [*of_model, format_cpu(row["cpu_seconds"]), format_bytes(row["peak_memory_bytes"])]


@click.group()
def budget() -> None:
    """Change the budgets of the model."""


@budget.command()
@click.argument("name", shell_complete=completed.agents)
@kernel_options
def reset(name: str, socket_path: str | None, as_json: bool) -> None:
    """Let NAME begin its budgets anew in their present windows.

    NAME is an agent, `group NAME` for a supervisor, or `kernel` for the budget of all agents.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.request(Op.USAGE, {"name": name, "reset": True}))
    print_result(f"the budgets of {name} begin anew", reply, as_json)
