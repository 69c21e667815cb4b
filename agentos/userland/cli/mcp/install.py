"""``agentos mcp install``: makes a client's entry, and adds our server to the client's configuration file."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from agentos.userland.cli.common import Failed, printable
from agentos_sdk.errors import ConnectionFailed
from agentos_sdk.project import describe_missing_kernel, find_project, is_config, is_lock_held

from .rights import (
    entry_errors,
    find_kernel_socket,
    find_place,
    kernel_state_option,
    level_option,
    permissions_option,
    read_rights,
)

if TYPE_CHECKING:
    from agentos.userland.mcp.clients import ClientEntry
    from agentos.userland.mcp.install import Change, Client

NAMES = ("claude-desktop", "claude-code", "cursor", "vscode", "gemini-cli")
DECIDES = "Where a rule asks, may an answer given in {} decide, as `agentos approve` does?"


@click.command()
@click.argument("client_name", metavar="CLIENT", type=click.Choice(NAMES))
@click.option("--name", metavar="NAME", help="The entry's name, and our server's in the client; default: CLIENT's.")
@level_option
@permissions_option
@click.option(
    "--elicitation",
    type=click.Choice(["off", "decides"]),
    help="Whether an answer in the client's own window decides an approval; default: asked on a terminal, else off.",
)
@click.option("--print", "only_print", is_flag=True, help="Print what would be added to which file; change nothing.")
@click.option("--wsl", "distribution", metavar="DISTRO", help="The client runs on Windows, the kernel in this WSL.")
@click.option("--ssh", "host", metavar="HOST", help="The client runs elsewhere, and reaches this host as HOST by SSH.")
@click.option("--standalone", is_flag=True, help="Start a kernel, with the project's file, where none runs.")
@click.option("--socket", "socket", metavar="PATH", help="The kernel's socket.")
@kernel_state_option
def install(
    client_name: str,
    name: str | None,
    level: str | None,
    permissions_file: Path | None,
    elicitation: Literal["off", "decides"] | None,
    only_print: bool,
    distribution: str | None,
    host: str | None,
    standalone: bool,
    socket: str | None,
    state_dir: Path | None,
) -> None:
    """Let an MCP client use this kernel.

    CLIENT is claude-desktop, claude-code, cursor, vscode or gemini-cli.

    Makes an entry with the client's rights, and adds our server to the client's configuration file, of which a copy is
    kept. With --wsl or --ssh the client is on another system: what to add to its file is printed.
    """
    from agentos.userland.mcp import clients
    from agentos.userland.mcp import install as files

    client = files.CLIENTS[client_name]
    more = more_words(distribution, host, standalone)
    rights = read_rights(level, permissions_file)
    with entry_errors(place := find_place(state_dir)):
        clients.check_name(name or client_name)
        path = find_kernel_socket(socket, place, state_dir is not None)
        runs = is_lock_held(str(place / "lock"))
        command = files.server_command(name or client_name, path, place, more)
        if distribution is not None:
            command = files.through_wsl(command, distribution)
        elif host is not None:
            command = files.through_ssh(command, host)
        server, added = name or files.SERVER_NAME, files.server_entry(client, command)
        is_elsewhere = distribution is not None or host is not None
        try:
            change = None if is_elsewhere else files.plan(client, server, added, place)
            if not only_print:
                decides = choose_elicitation(client, elicitation)
                entry = clients.ClientEntry(name or client_name, "stdio", time.time(), elicitation=decides, **rights)
                backup = add_entry(place, entry, change)
        except files.InstallError as error:
            raise Failed(str(error)) from None
    if only_print:
        print_addition(client, server, added, distribution is not None, is_elsewhere)
        click.echo("agentos: nothing was changed, and no entry was made", err=True)
        return
    for line in describe_entry(entry, place):
        click.echo(printable(line), err=is_elsewhere)
    if not standalone and not runs:
        click.echo(printable(f"agentos: the client will find {describe_missing_kernel(path)}"), err=True)
    if change is None:
        print_addition(client, server, added, distribution is not None, is_elsewhere)
        return
    former = f"; as it was: {backup}" if backup is not None else ""
    click.echo(printable(f"server {server!r} written to {change.path}{former}"))
    click.echo(f"start {client.title} anew to use it; `agentos mcp revoke {entry.name}` ends it")


def add_entry(place: Path, entry: "ClientEntry", change: "Change | None") -> "Path | None":
    """Make an entry, and add our server to the client's file, or neither. Returns the path of the file's copy."""
    from agentos.userland.mcp import clients, install

    clients.create(place, entry)
    try:
        return install.write(change) if change is not None else None
    except install.InstallError:
        clients.revoke(place, entry.name)
        raise


def more_words(distribution: str | None, host: str | None, standalone: bool) -> list[str]:
    """Further words of our server's command; fails for options that make no sense."""
    if distribution is not None and host is not None:
        raise click.UsageError("--wsl and --ssh are two ways to the same kernel: choose one")
    for option, value in (("--wsl", distribution), ("--ssh", host)):
        if value is not None and (not value or value.startswith("-") or not value.isprintable()):
            raise click.BadParameter(f"expected a name, got {value!r}", param_hint=option)
    if not standalone:
        return []
    try:
        project = find_project()
    except ConnectionFailed as error:
        raise Failed(str(error)) from None
    return ["--standalone", *(["--config", project.file] if is_config(project.file) else [])]


def choose_elicitation(client: "Client", given: Literal["off", "decides"] | None) -> Literal["off", "decides"]:
    """What the option says; without it the person at the terminal."""
    if given is None and sys.stdin.isatty() and sys.stderr.isatty():
        return "decides" if click.confirm(DECIDES.format(client.title), err=True) else "off"
    return given or "off"


def describe_entry(entry: "ClientEntry", place: Path) -> Iterator[str]:
    yield f"{entry.guest} may use this kernel, with at most {entry.rights}; its entry is in {place / 'mcp' / 'clients'}"
    if entry.elicitation == "decides":
        yield "where a rule asks, an answer in the client's window decides (elicitation: decides)"
    else:
        yield "where a rule asks, its calls wait for `agentos approve` (elicitation: off)"


def print_addition(client: "Client", server: str, added: dict[str, Any], on_windows: bool, is_elsewhere: bool) -> None:
    """Print what to add to the client's file on stdout, and which file that is on stderr."""
    from agentos.userland.mcp.install import find_file

    if on_windows:
        where = client.windows
    elif is_elsewhere:
        where = f"{client.macos} (macOS), {client.windows} (Windows) or ~/{client.linux} (Linux)"
    else:
        where = str(find_file(client))
    click.echo(printable(f"agentos: for {client.title}, in {where}:"), err=True)
    click.echo(json.dumps({client.table: {server: added}}, indent=2, ensure_ascii=False))
