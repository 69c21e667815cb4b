"""``agentos cp``: copies files between the host and an agent's jail."""

import posixpath
import sys

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import kernel, kernel_options, print_json, printable

from .copied import Copied
from .copy_in import copy_in
from .copy_out import copy_out

MAX_TOLD = 20  # entries that weren't copied, by name


@click.command()
@click.argument("source", metavar="SRC", shell_complete=completed.agent_colon)
@click.argument("target", metavar="DST", shell_complete=completed.agent_colon)
@kernel_options
def cp(source: str, target: str, socket_path: str | None, as_json: bool) -> None:
    """Copy files out of an agent's jail, or into it.

    One of SRC and DST is NAME:PATH, a path in the jail of the agent NAME, the other one a path here, or - for stdin or
    stdout. A directory DST that exists gets the copy in it. Only files and directories are copied.
    """
    inside, outside = find_inside(source), find_inside(target)
    if (inside is None) == (outside is None):
        raise click.UsageError("expected NAME:PATH, a path in an agent's jail, as one of SRC and DST")
    with kernel(socket_path) as client:
        copied = Copied()
        if inside is not None:
            copy_out(client, *inside, target, copied)
        elif outside is not None:
            copy_in(client, source, *outside, copied)
    for text in copied.skipped[:MAX_TOLD]:
        click.echo(f"agentos: not copied: {text}", err=True)
    if len(copied.skipped) > MAX_TOLD:
        click.echo(f"agentos: not copied: {len(copied.skipped) - MAX_TOLD} more", err=True)
    if as_json:
        done = {"files": copied.files, "bytes": copied.bytes, "skipped": copied.skipped}
        print_json({"success": not copied.skipped, **done})
    sys.exit(1 if copied.skipped else 0)


def find_inside(given: str) -> tuple[str, str] | None:
    """The agent and the absolute path of ``NAME:PATH``; None for a path of the host's."""
    name, colon, path = given.partition(":")
    if not colon or not name or "/" in name or name.startswith("."):
        return None
    path = posixpath.normpath(posixpath.join("/workspace", path))
    if posixpath.basename(path) in ("", "..") or "\0" in path:
        raise click.UsageError(f"{printable(given)}: expected the path of a file or a directory")
    return name, path
