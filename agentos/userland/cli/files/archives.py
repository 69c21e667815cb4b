"""``agentos export`` and ``import``: an agent as a file, for another kernel."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentos.userland.cli import completed
from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.common import Failed, check_reply, kernel, kernel_options, plural, print_result, printable
from agentos.userland.whole_files import replacing

if TYPE_CHECKING:
    from agentos_sdk.calls.operator.archives import Part

PARTS = ("agent", "state", "mailbox", "workspace")


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--include", type=click.Choice(PARTS), multiple=True, help="Only this part; may be repeated.")
@kernel_options
def export(name: str, file: str, include: "tuple[Part, ...]", socket_path: str | None, as_json: bool) -> None:
    """Write an agent to a file: declaration, state, mailbox, files.

    An agent that runs is held still for it, and goes on. The file has no permissions, budgets and environment, but all
    that the agent has stored and written: keep it as private as that.
    """
    check_target(file)
    with kernel(socket_path) as client:
        try:
            with replacing(Path(file).absolute()) as out, client.export_agent(name, include or None) as pieces:
                for piece in pieces:
                    out.write(piece)
        except OSError as error:  # of another file beside it, which isn't there any more
            raise Failed(f"{file}: {error.strerror or error}") from None
    reply = check_reply(pieces.exported or {})
    without = printable(", ".join(reply["left_out"]))  # in one line, whatever names of variables a child was given
    text = f"{name} is in {file}: {format_bytes(reply['size'])}, without {without}"
    print_result(text, reply, as_json)


def check_target(file: str | Path) -> None:
    """Fail if a file that is to be written is there, and is no regular one."""
    if os.path.lexists(file) and not stat.S_ISREG(os.lstat(file).st_mode):
        raise Failed(f"{file}: expected a new file, or a regular one, which is replaced")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--as", "as_", metavar="NAME", help="Call the agent so, and not as it was called.")
@kernel_options
def import_(file: str, as_: str | None, socket_path: str | None, as_json: bool) -> None:
    """Start the agent of a file that `agentos export` has written.

    It runs in a jail with the default permissions; its files are in a kept workspace.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.import_agent(file, as_))
    [one] = reply["imported"]
    came = f"{plural(one['keys'], 'key')}, {plural(one['messages'], 'message')}, {plural(one['files'], 'file')}"
    print_result(f"{one['name']} (id {one['id']}) runs, with {came}", reply, as_json)
