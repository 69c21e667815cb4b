"""``agentos start``, ``stop`` and ``restart``."""

from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import check_reply, kernel, kernel_options, print_lines

names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=completed.agents_and_groups
)


@click.command()
@names_argument
@click.option("--now", is_flag=True, help="Also those that wait, for a time of their schedule, say.")
@kernel_options
def start(names: tuple[str, ...], now: bool, socket_path: str | None, as_json: bool) -> None:
    """Start declared agents and groups that have ended.

    Each keeps its id, name and mailbox, and its restart limits begin anew. An agent with a schedule waits for its next
    time, unless --now is given.
    """
    with kernel(socket_path) as client:
        print_states(check_reply(client.start(names=names, now=now)), as_json)


@click.command()
@names_argument
@click.option("--keep", is_flag=True, help="Also over a restart of the kernel.")
@kernel_options
def stop(names: tuple[str, ...], keep: bool, socket_path: str | None, as_json: bool) -> None:
    """Stop declared agents and groups until `agentos start`.

    They stay stopped when their group is restarted, and until the kernel ends; with --keep also after that.
    """
    with kernel(socket_path) as client:
        print_states(check_reply(client.stop(names=names, keep=keep)), as_json)


@click.command()
@names_argument
@kernel_options
def restart(names: tuple[str, ...], socket_path: str | None, as_json: bool) -> None:
    """Stop agents and groups and start them again.

    A member of a group is restarted without its siblings.
    """
    with kernel(socket_path) as client:
        print_states(check_reply(client.restart(names=names)), as_json)


def print_states(reply: dict[str, Any], as_json: bool) -> None:
    """Print the state of each agent, or with --json the reply."""
    print_lines((f"{agent['name']} is {agent['state']}" for agent in reply["agents"]), reply, as_json)
