"""``agentos replay``: has a program live a recorded life again, sealed, and says where it asks something else."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agentos.recordings.format import SUFFIX
from agentos.userland.cli import completed
from agentos.userland.cli.common import Failed, kernel, kernel_options, plural, print_lines
from agentos_sdk.testing.replays import run_replay

STATUS = {"identical": 0, "drifted": 0, "diverged": 1, "exhausted": 1, "unfinished": 1, "can't": 2}
MAX_SHOWN = 20  # differences


class NotReplayed(Failed):
    """No life could be replayed."""

    exit_code = STATUS["can't"]


@click.command()
@click.argument("recording", metavar="REC")
@click.argument("agent", required=False, metavar="[AGENT]", shell_complete=completed.agents)
@click.option("--code", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Run the program in this directory, not the agent's.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 also if words differ where an answer was found.")
@kernel_options
def replay(
    recording: str, agent: str | None, code: Path | None, strict: bool, as_json: bool, socket_path: str | None
) -> None:
    """Have agents' programs live recorded lives again.

    REC is a recording's name or directory, AGENT an agent in it or one of its lives, as coder/2; without it all lives
    are replayed, each alone. A program runs in a jail without a network, and all its calls are answered from the
    recording: no model is asked, no command of EXEC runs, no message leaves, no agent is spawned.

    The exit status is 0 if all calls were the same, 1 if one had no answer or wasn't made, and 2 if a life could not
    be replayed.
    """
    path = str(Path(recording).absolute()) if recording.endswith(SUFFIX) else recording
    where = str(code.absolute()) if code is not None else None
    with kernel(socket_path) as client:
        try:
            found = run_replay(client, path, agent=agent, code=where)
        except KeyboardInterrupt:
            sys.exit(130)
    if found["verdict"] == "can't" and not found["lives"] and not as_json:
        raise NotReplayed(found["error"])
    print_lines(describe(found), found, as_json)
    status = STATUS[found["verdict"]]
    sys.exit(1 if strict and found["verdict"] == "drifted" else status)


def describe(found: Mapping[str, Any]) -> list[str]:
    """What a person reads about a replay that has ended."""
    lines = [found["verdict"] if not found.get("entries_replayed") else counted(found)]
    if found["lives"]:
        lines += [line for one in found["lives"] for line in indented(one["life"], describe({**one, "lives": []}))]
        return lines + [f"note: {note}" for note in found["notes"]]
    if found["error"]:
        lines.append(found["error"])
    if found["divergence"]:
        lines += found["divergence"].split("\n")
    shown = found["drift"][:MAX_SHOWN]
    lines += [f"{one['kind']}: {one['where']}: recorded {one['recorded']!r}, now {one['now']!r}" for one in shown]
    if len(found["drift"]) > MAX_SHOWN:
        lines.append(f"{len(found['drift']) - MAX_SHOWN} more differences: --json has all")
    if found["masks"]:
        counts = ", ".join(f"{name} ({count})" for name, count in found["masks"].items())
        lines.append(f"equal after masks: {counts}")
    if found["sealed"]:
        lines.append(f"{plural(found['sealed'], 'attempt')} to reach the network refused")
    return lines + [f"note: {note}" for note in found["notes"]]


def indented(life: str, lines: list[str]) -> list[str]:
    return [f"{life}: {lines[0]}", *(f"  {line}" for line in lines[1:])]


def counted(found: Mapping[str, Any]) -> str:
    total = found["total_entries"] - found["entries_skipped"]
    return f"{found['verdict']}: {found['entries_replayed']} of {plural(total, 'call')}"
