"""``agentos top``: a live view of the agents, with keys that sort, filter, kill, pause and restart."""

import curses
import shutil
import sys
from collections.abc import Sequence

import click

from agentos.userland.cli.common import Failed, Seconds, kernel, socket_option
from agentos.userland.cli.terminal import raise_on_signals

from .poller import Poller, read_usage
from .screen import Screen
from .table import SORTS, Agent, Shares, View, add_usage, list_rows, make_table

MIN_DELAY = 1.0  # seconds: the kernel reads what agents use no more often


@click.command()
@click.option("-d", "--delay", type=Seconds(MIN_DELAY, 3600), default=1.0, help="Seconds between two updates.")
@click.option("--once", is_flag=True, help="Print one table and end, as in a pipe.")
@click.option("--sort", type=click.Choice(list(SORTS.values())), help="Default: cpu; with --once memory.")
@socket_option
def top(delay: float, once: bool, sort: str | None, socket_path: str | None) -> None:
    """Watch the agents: CPU, memory, restarts, tokens and cost.

    Keys: m, c, r, n, $, T sort by memory, CPU, restarts, name, cost, tokens; /
    filters; t shows the tree, a those that have ended; k kills, p pauses or
    resumes, R restarts the agent at the cursor, after a question; q ends.
    """
    with kernel(socket_path) as client:
        agents = add_usage(client.list_agents(all=True), read_usage(client))
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print_table(agents, sort or "memory")
        return
    with raise_on_signals(), Poller.started(socket_path, delay) as poller:
        try:
            Screen.run(poller, View(sort or "cpu"))
        except curses.error as error:
            raise Failed(f"this terminal can't be used: {error}: set TERM, or use --once") from None
        except KeyboardInterrupt:
            pass


def print_table(agents: Sequence[Agent], sort: str) -> None:
    shares = Shares()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    header, lines = make_table(list_rows(agents, View(sort), shares), shares, width)
    for number, line in enumerate([header, *lines]):
        click.echo(click.style(line, bold=not number))
