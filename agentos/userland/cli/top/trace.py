"""``agentos trace``: a life of an agent as a waterfall of calls, from the audit log's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.audit.audit import iterate_entries, log_directory, make_query
from agentos.userland.cli.columns import table_width
from agentos.userland.cli.common import Failed, agent_fields, check_reply, kernel, kernel_options, print_json
from agentos.userland.cli.kernel.run import state_dir_option
from agentos.userland.cli.times import format_time

from .trace_lives import LIFE_CALLS, Life, Trace, find_lives
from .trace_table import Scale, describe_life, total_lines, waterfall

DEFAULT_CALLS, MAX_CALLS = 100, 100_000


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.option("--life", "number", type=int, default=-1, metavar="N", help="The Nth in the log; -1 is the last.")
@click.option(
    "-n",
    "--tail",
    "most",
    type=click.IntRange(1, MAX_CALLS),
    default=DEFAULT_CALLS,
    show_default=True,
    help="How many calls, the last ones.",
)
@click.option("--contents", is_flag=True, help="Also what it asked the model, and the answers.")
@state_dir_option()
@kernel_options
def trace(
    name: str,
    number: int,
    most: int,
    contents: bool,
    state_dir: Path | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Show a life of the agent NAME as a waterfall of calls.

    Each call has its start, its duration and its object; a question to the model also its time in the queue (░).
    NAME may be an id. A task of `agentos task` is a life of its agent: task-1, task-2 … It may also be a recording, by
    name or as a directory NAME.recording.

    It is read from the audit log, so no kernel has to run, except for --contents.
    """
    from agentos.userland.cli.recordings.recordings import find_recording, show_recording

    if not has_life(name, state_dir) and (recording := find_recording(name, state_dir)) is not None:
        show_recording(recording, None, most, contents, as_json)
        return
    questions = read_questions(name, socket_path) if contents else []
    life, number, count, found = read_life(name, number, most, state_dir)
    found.add_contents(questions)
    calls, began = found.in_order(), format_time(life.began)
    lasted = None if life.ended is None else life.ended - life.began
    if as_json:
        print_json(
            {
                "name": name,
                "agent_id": life.agent_id,
                "life": number,
                "lives": count,
                "began": life.began,
                "ended": life.ended,
                "reason": life.reason,
                "left_out": found.left_out,
                "calls": [call.as_json() for call in calls],
            }
        )
        return
    width = table_width()
    click.echo(describe_life(name, number, count, began, lasted, life.reason))
    end = max([found.seen_until - life.began, *(call.start + (call.duration or 0.0) for call in calls)])
    scale = Scale(calls[0].start if found.left_out else 0.0, end)
    for line in (*waterfall(calls, scale, width, contents), *total_lines(calls, width, running=life.ended is None)):
        click.echo(line)
    if found.left_out:
        click.echo(
            f"{found.left_out:,} earlier calls of this life aren't shown: -n {found.left_out + len(calls)} shows all"
        )


def has_life(name: str, state_dir: Path | None) -> bool:
    """Whether the audit log has a life of an agent with this name."""
    if name.endswith(".recording"):
        return False
    with log_directory(state_dir) as directory:
        query = make_query(name, (), None, None, None)
        return next(iter(iterate_entries(directory, query, calls=LIFE_CALLS)), None) is not None


def read_life(name: str, number: int, most: int, state_dir: Path | None) -> tuple[Life, int, int, Trace]:
    """The chosen life, its number and the number of lives in the log, and its calls."""
    query = make_query(name, (), None, None, None)
    with log_directory(state_dir) as directory:
        lives = find_lives(iterate_entries(directory, query, calls=LIFE_CALLS))
        if not lives:
            raise Failed(f"no life of {name} is in the audit log; `agentos audit {name}` shows what else it has of it")
        index = number - 1 if number > 0 else len(lives) + number
        if number == 0 or not 0 <= index < len(lives):
            raise Failed(f"--life {number}: {name} has {len(lives)} in the log: 1 to {len(lives)}, or -1 for the last")
        life = lives[index]
        found = Trace(life.began, most)
        for entry in iterate_entries(directory, query, since=life.began, until=life.next_began):
            if entry["agent_id"] == life.agent_id:
                found.add(entry)
    return life, index + 1, len(lives), found


def read_questions(name: str, socket_path: str | None) -> Sequence[Mapping[str, Any]]:
    """All questions that the kernel keeps of an agent, the oldest first."""
    found: list[Mapping[str, Any]] = []
    with kernel(socket_path) as client:
        while True:
            after = found[-1]["id"] if found else 0
            page = check_reply(client.get_contents(**agent_fields(name), since_id=after))
            found += page["questions"]
            if not page["more"]:
                return found
