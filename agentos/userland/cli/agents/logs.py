"""``agentos logs``: shows what agents wrote, from the kernel or, of the last run, from the log's files."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import (
    Failed,
    agent_fields,
    check_reply,
    kernel,
    kernel_options,
    plural,
    print_json_line,
    printable,
)
from agentos.userland.cli.kernel.run import state_dir_option
from agentos.userland.cli.output_text import colour_of, printable_output, shows_colours
from agentos.userland.cli.times import FORMS, format_stamp, read_time
from agentos_sdk.project import is_lock_held

DEFAULT_TAIL = 100
STREAM_COLOURS = {"stderr": "red", "kernel": "bright_black"}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completed.agents)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; of one agent until it has ended.")
@click.option("-n", "--tail", type=click.IntRange(0, 2000), help="How many lines; default 100, with --since all.")
@click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}.")
@click.option("--until", metavar="WHEN", help="As --since; default: now.")
@click.option("--grep", metavar="RE", help="Only lines in which this regular expression is found.")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "kernel"]), help="Only lines of this stream.")
@click.option("--last-run", is_flag=True, help="The last run of the kernel, also if none runs now.")
@click.option("--raw", is_flag=True, help="Let all control sequences through, not only colours.")
@state_dir_option("For --last-run: as `agentos run`.")
@kernel_options
def logs(
    names: tuple[str, ...],
    follow: bool,
    tail: int | None,
    last_run: bool,
    raw: bool,
    state_dir: Path | None,
    as_json: bool,
    socket_path: str | None,
    **filters: str | None,
) -> None:
    """Show what agents wrote, over all runs of the kernel.

    NAME is an agent's name or its id, or `kernel`; without NAME all are shown, in the order of time. Control
    characters are escaped, but on a terminal colours are shown.
    """
    selected = {
        "since": read_time(filters["since"], "--since"),
        "until": read_time(filters["until"], "--until"),
        "grep": filters["grep"],
        "stream": filters["stream"],
    }
    if follow and last_run:
        raise click.UsageError("--follow and --last-run exclude each other: the last run is over")
    try:
        if last_run:
            pages = read_last_run(state_dir, names, tail, selected)
        else:
            pages = ask_kernel(socket_path, names, tail, selected, follow)
        for page in pages:
            print_page(page, as_json, raw, len(names) != 1)
    except KeyboardInterrupt:
        sys.exit(130)


def ask_kernel(
    path: str | None, names: Sequence[str], tail: int | None, selected: Mapping[str, Any], follow: bool
) -> Iterator[Mapping[str, Any]]:
    """The pages of LOGS. ``since`` is always given, so that earlier runs are read, too."""
    which: dict[str, Any] = agent_fields(names[0]) if len(names) == 1 else {"names": names or None}
    fields = {**which, "tail": tail, **selected, "since": selected["since"] or 0}
    try:
        with kernel(path) as client:
            if follow:
                yield from client.follow_logs(**{**fields, "tail": choose_tail(tail, selected)})
            elif choose_tail(tail, selected) is None:  # more than fits into one reply
                until = min(selected["until"] or time.time(), time.time())
                yield from client.follow_logs(**{**fields, "until": until})
            else:
                yield check_reply(client.logs(**{**fields, "tail": choose_tail(tail, selected)}))
    except Failed as error:
        if error.reply["code"] != "unavailable":
            raise
        raise Failed(f"{error.message}; `agentos logs --last-run` shows the log of its last run", error.reply) from None


def choose_tail(tail: int | None, selected: Mapping[str, Any]) -> int | None:
    """How many lines; None: all."""
    return DEFAULT_TAIL if tail is None and selected["since"] is None else tail


def read_last_run(
    state_dir: Path | None, names: Sequence[str], tail: int | None, selected: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """The pages of the last run's log, read from its files; while a kernel runs, of the run before."""
    import math

    from agentos.services.logs.files import KERNEL, Line, LogDirectory
    from agentos.services.logs.pattern import Pattern, PatternError
    from agentos.services.logs.query import Page, Reading, Selection
    from agentos.userland.cli.audit.audit import log_directory

    with log_directory(state_dir) as audit:
        directory = LogDirectory(audit.parent / "logs")
        files = directory.scan()
        runs = sorted({file.key.run for file in files})
        if runs and is_lock_held(str(audit.parent / "lock")):
            runs.pop()
        if not runs:
            raise Failed(f"{directory.directory}: there is no log of an earlier run")
        try:
            pattern = Pattern(selected["grep"]) if selected["grep"] is not None else None
        except PatternError as error:
            raise Failed(f"grep: {error}") from None
        selection = Selection(
            lambda name, run, origin: not names or name in names,
            selected["since"] or -math.inf,
            selected["until"] or math.inf,
            selected["stream"],
            pattern,
            runs[-1],
            with_kernel=not names or KERNEL in names,
        )
        count = choose_tail(tail, selected)
        reading = Reading(directory, files, {}, selection, backward=count is not None)
        last: list[Line] = []
        page = Page([], done=False)
        while not page.done and (count is None or len(last) < count):
            page = reading.next_page() if count is None else reading.next_page(most=count - len(last))
            if count is None:
                yield {"lines": [line._asdict() for line in page.lines], "missed": 0}
            else:
                last += page.lines
        yield {"lines": [line._asdict() for line in reversed(last)], "missed": 0}


def print_page(page: Mapping[str, Any], as_json: bool, raw: bool, named: bool) -> None:
    """Print lines; ``named``: they are of several agents, and each begins with its agent's name."""
    if page["missed"] and not as_json:
        lines = plural(page["missed"], "line")
        click.secho(f"({lines} more: no longer kept, or never written)", fg="bright_black", err=True)
    for line in page["lines"]:
        if as_json:
            print_json_line(line)
        else:
            click.echo(format_line(line, raw, named), color=raw or None)
    sys.stdout.flush()


def format_line(line: Mapping[str, Any], raw: bool, named: bool) -> str:
    """``12:00:01 stdout | text``; with the day in front if it isn't today, and with the name if there are several."""
    stamp = format_stamp(line["at"])
    coloured = shows_colours()
    text = line["text"] if raw else printable_output(line["text"], coloured and line["stream"] != "kernel")
    tag = f"{line['stream']:6}"
    if named:
        tag = f"{printable(line['name']):>12}"
        tag = f"\x1b[{colour_of(line['name'])}m{tag}\x1b[0m" if coloured else tag
    colour = STREAM_COLOURS.get(line["stream"]) if not named or line["name"] != "kernel" else None
    return f"{stamp} {tag} | {click.style(text, fg=colour) if coloured and colour else text}"
