"""``agentos reload``: reads the configuration file again."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from agentos.userland.cli.columns import format_table
from agentos.userland.cli.common import check_reply, kernel, kernel_options, print_lines

HEADER = ["CHANGE", "AGENT OR GROUP", "FIELDS"]


@click.command()
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@kernel_options
def reload(dry_run: bool, socket_path: str | None, as_json: bool) -> None:
    """Read the configuration file again and change what differs.

    Agents that the change doesn't concern go on. A file with mistakes changes nothing.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.reload(dry_run))
    print_lines(describe_reload(reply, dry_run), reply, as_json)


def describe_reload(reply: Mapping[str, Any], dry_run: bool) -> Iterator[str]:
    """The changes as a table, and what needs a new kernel."""
    restart = reply["kernel_restart"]
    rows = [[one["change"], one["agent"], ", ".join(one["fields"])] for one in reply["changes"]]
    rows += [["updated", key, ""] for key in reply["settings"]]
    if rows:
        yield from format_table(rows, HEADER)
    elif not restart:
        yield "nothing differs" if dry_run else "nothing differs: nothing was changed"
    if restart:
        yield f"not changed until the kernel is started anew: {', '.join(restart)}"
    if rows and dry_run:
        yield "nothing was changed: this was a dry run"
