"""``agentos mcp clients``, ``revoke`` and ``token``: the entries of MCP clients."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.userland.cli.common import Failed, json_option, print_json, print_result, print_table
from agentos.userland.cli.times import format_time

from .rights import entry_errors, find_place, kernel_state_option, level_option, permissions_option, read_rights

if TYPE_CHECKING:
    from agentos.userland.mcp.clients import ClientEntry

HEADER = ["NAME", "TRANSPORT", "LEVEL", "ELICITATION", "LAST USED"]


@click.command()
@json_option
@kernel_state_option
def clients(state_dir: Path | None, as_json: bool) -> None:
    """List the MCP clients that may use this kernel."""
    from agentos.userland.mcp.clients import list_entries

    with entry_errors(place := find_place(state_dir)):
        found = list_entries(place)
    listed = [client_object(entry, used) for entry, used in found]
    rows = [
        [one.name, one.transport, one.rights, elicitation_of(one), format_time(used) if used else "never"]
        for one, used in found
    ]
    empty = "no MCP client: make one with `agentos mcp install claude-desktop`, or `agentos mcp token NAME`"
    print_table(rows, HEADER, ("NAME", "LEVEL"), empty, listed, as_json)


@click.command()
@click.argument("name")
@json_option
@kernel_state_option
def revoke(name: str, state_dir: Path | None, as_json: bool) -> None:
    """Remove an MCP client.

    Its sessions end, and its token is no longer good.
    """
    from agentos.userland.mcp.clients import revoke as remove

    with entry_errors(place := find_place(state_dir)):
        if not remove(place, name):
            known = f"`agentos mcp clients` lists those of {place}"
            raise Failed(f"no MCP client is called {name!r}: {known}", {"code": "not_found"})
    print_result(f"{name} revoked", {"success": True, "name": name}, as_json)


@click.command()
@click.argument("name")
@level_option
@permissions_option
@json_option
@kernel_state_option
def token(name: str, level: str | None, permissions_file: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Make an MCP client for HTTP, and print its token.

    It is shown this once: only its hash is kept.
    """
    from agentos.userland.mcp.clients import ClientEntry, create, make_token

    with entry_errors(place := find_place(state_dir)):
        made, kept = make_token(name)
        rights = read_rights(level, permissions_file)
        entry = ClientEntry(name, "http", time.time(), token_sha256=kept, **rights)
        create(place, entry)
    if as_json:
        print_json({"success": True, "token": made, **client_object(entry, None)})
        return
    click.echo(made)
    click.echo(f"agentos: the token of {entry.guest}, at most {entry.rights}; it isn't shown again", err=True)


def elicitation_of(entry: "ClientEntry") -> str:
    return "never" if entry.transport == "http" else entry.elicitation


def client_object(entry: "ClientEntry", used: float | None) -> dict[str, Any]:
    """An entry for programs; times are seconds of Unix time."""
    return {
        "name": entry.name,
        "guest": entry.guest,
        "transport": entry.transport,
        "level": entry.level,
        "permissions": entry.permissions,
        "elicitation": entry.elicitation,
        "created": entry.created,
        "last_used": used,
    }
