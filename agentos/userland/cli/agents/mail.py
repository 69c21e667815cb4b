"""``agentos mail``: which mailboxes aren't empty, what waits in an agent's, and its dead letters."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    kernel_options,
    plural,
    print_json,
    print_table,
    printable,
)
from agentos_sdk.encoding.quantities import duration

from .resources import format_bytes

SHOWN = 200  # characters of a message
HEADER = ["NAME", "WAITING", "LEASED", "DEAD", "SIZE", "OLDEST", "KEPT"]


@click.command()
@click.argument("name", required=False, shell_complete=completed.agents)
@click.option("--dead", is_flag=True, help="The dead letters: handed out 5 times and never acknowledged.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="How many.")
@click.option("--after", type=int, metavar="ID", help="Those after this one.")
@click.option("--requeue", type=int, multiple=True, metavar="ID", help="Let this dead letter wait again.")
@click.option("--drop", type=int, multiple=True, metavar="ID", help="Remove this message; with --dead a dead letter.")
@kernel_options
def mail(
    name: str | None,
    dead: bool,
    limit: int,
    after: int | None,
    requeue: tuple[int, ...],
    drop: tuple[int, ...],
    socket_path: str | None,
    as_json: bool,
) -> None:
    """List what waits in a mailbox, or all that are not empty.

    No message is taken. Also of an agent that isn't declared any more, if its mailbox was kept.
    """
    if name is None and (dead or after is not None or requeue or drop):
        raise click.UsageError("--dead, --after, --requeue and --drop need the NAME of a mailbox")
    with kernel(socket_path) as client:
        reply = check_reply(client.mail(name, dead=dead, limit=limit, after=after, requeue=requeue, drop=drop))
    check_done(reply, dead, requeue, drop)
    if as_json:
        print_json(reply)
    elif name is None:
        rows = [describe_mailbox(one, time.time()) for one in reply["mailboxes"]]
        print_table(rows, HEADER, ("NAME",), "no message waits, and there are no dead letters")
        if others := reply["count"] - len(rows):
            click.echo(f"and {others} more: --limit")
    else:
        print_messages(reply, dead)


def describe_mailbox(box: Mapping[str, Any], now: float) -> list[str]:
    age = duration(round(max(0.0, now - box["oldest_at"]))) if box["oldest_at"] is not None else "-"
    counts = [str(box[key]) if box[key] else "-" for key in ("waiting", "leased", "dead")]
    return [box["name"], *counts, format_bytes(box["size"]), age, "yes" if box["kept"] else "memory"]


def print_messages(reply: Mapping[str, Any], dead: bool) -> None:
    for what in ("requeued", "dropped"):
        if reply[what]:
            click.echo(f"{what} {plural(reply[what], 'message')}")
    for one in reply["messages"]:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(one["sent_at"]))
        text = json.dumps(one["message"], ensure_ascii=False)
        more = f" ... ({len(text)} characters)" if len(text) > SHOWN else ""
        tries = f", attempt {one['attempt']}" if one["attempt"] else ""
        leased = f", leased for {duration(round(one['leased']))} more" if one["leased"] is not None else ""
        click.echo(printable(f"{one['id']}  {when}  {one['from_name']}{tries}{leased}: {text[:SHOWN]}{more}"))
    others = reply["count"] - len(reply["messages"])
    if others or not reply["messages"]:
        what = "dead letter" if dead else "message"
        click.echo(f"{plural(others, 'other ' + what) if reply['messages'] else plural(reply['count'], what)}")


def check_done(reply: Mapping[str, Any], dead: bool, requeue: Sequence[int], drop: Sequence[int]) -> None:
    """Fail if some of the messages that were named weren't there."""
    asked, done = len({*requeue}), reply["requeued"]
    if done < asked:
        raise Failed(f"requeued {done} of {asked}: the others are no dead letters, which --dead lists", reply)
    asked, done = len({*drop}), reply["dropped"]
    if done < asked:
        why = "are no dead letters" if dead else "don't wait: a leased one stays, and dead letters need --dead"
        raise Failed(f"dropped {done} of {asked}: the others {why}", reply)
