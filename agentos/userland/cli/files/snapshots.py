"""``agentos snapshot``, ``snapshots`` and ``rollback``: moments of an agent's overlay."""

from collections.abc import Sequence

import click

from agentos.userland.cli import completed
from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.common import (
    check_reply,
    kernel,
    kernel_options,
    plural,
    print_json,
    print_result,
    print_table,
)
from agentos.userland.cli.times import format_time

HEADER = ["SNAPSHOT", "ID", "TAKEN", "SIZE", "AFTER"]


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.argument("label", required=False)
@kernel_options
def snapshot(name: str, label: str | None, socket_path: str | None, as_json: bool) -> None:
    """Keep what an agent has changed up to now.

    `agentos rollback NAME@LABEL` goes back to it. Without LABEL it has an id. An agent that runs is held still for it,
    and goes on; its private keys and unread mail are kept, too.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.snapshot(name, label))
    size = f"{plural(reply['paths'], 'path')}, {format_bytes(reply['bytes'])}" if reply["paths"] else "nothing new"
    print_result(f"{name}@{label or reply['snapshot']} is kept: {size}", reply, as_json)


@click.command()
@click.argument("name", required=False, shell_complete=completed.agents)
@click.option("--remove", metavar="ID", help="Remove this one first; with NAME also a label.")
@kernel_options
def snapshots(name: str | None, remove: str | None, socket_path: str | None, as_json: bool) -> None:
    """List the snapshots of an agent, or all."""
    with kernel(socket_path) as client:
        reply = check_reply(client.snapshots(name, remove=remove))
    if as_json:
        print_json(reply)
        return
    if remove is not None:
        click.echo(f"{remove} is removed")
    labels = {one["snapshot"]: one["label"] or one["snapshot"] for one in reply["snapshots"]}
    rows = [
        [
            f"{one['name']}@{one['label'] or one['snapshot']}",
            one["snapshot"],
            format_time(one["at"]),
            format_bytes(one["bytes"]),
            labels.get(one["parent"], "-"),
        ]
        for one in reply["snapshots"]
    ]
    print_table(rows, HEADER, ("SNAPSHOT", "AFTER"), "no snapshots")


@click.command()
@click.argument("moments", nargs=-1, required=True, metavar="NAME@LABEL...", shell_complete=completed.agents)
@kernel_options
def rollback(moments: Sequence[str], socket_path: str | None, as_json: bool) -> None:
    """Have agents go back to a snapshot.

    What they have changed since is thrown away; NAME@start is the directory as it is. An agent that runs is restarted.
    """
    for moment in moments:
        name, _, label = moment.rpartition("@")
        if not name or not label:
            raise click.BadParameter(f"expected NAME@LABEL or NAME@start, got {moment!r}", param_hint="NAME@LABEL")
    with kernel(socket_path) as client:
        for moment in moments:
            name, _, label = moment.rpartition("@")
            reply = check_reply(client.rollback(name, label))
            where = "the directory as it is" if label == "start" else moment
            restarted = ", and was restarted" if reply["restarted"] else ""
            print_result(f"{name} works on {where}{restarted}", reply, as_json)
