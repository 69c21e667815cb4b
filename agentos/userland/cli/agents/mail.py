"""``agentos mail``: what waits in an agent's mailbox, and its dead letters."""

import json
import time

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import check_reply, kernel, kernel_options, plural, print_json, printable

SHOWN = 200  # characters of a message


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.option("--dead", is_flag=True, help="The dead letters: handed out 5 times and never acknowledged.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="How many.")
@click.option("--after", type=int, metavar="ID", help="Those after this one.")
@click.option("--requeue", type=int, multiple=True, metavar="ID", help="Let this dead letter wait again.")
@click.option("--drop", type=int, multiple=True, metavar="ID", help="Remove this message; with --dead a dead letter.")
@kernel_options
def mail(
    name: str,
    dead: bool,
    limit: int,
    after: int | None,
    requeue: tuple[int, ...],
    drop: tuple[int, ...],
    socket_path: str | None,
    as_json: bool,
) -> None:
    """List what waits in the mailbox of an agent.

    No message is taken. Also of an agent that isn't declared any more, if its mailbox was kept.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.mail(name, dead=dead, limit=limit, after=after, requeue=requeue, drop=drop))
    if as_json:
        print_json(reply)
        return
    for one in reply["messages"]:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(one["sent_at"]))
        text = json.dumps(one["message"], ensure_ascii=False)
        more = f" ... ({len(text)} characters)" if len(text) > SHOWN else ""
        tries = f", attempt {one['attempt']}" if one["attempt"] else ""
        click.echo(printable(f"{one['id']}  {when}  {one['from_name']}{tries}: {text[:SHOWN]}{more}"))
    others = reply["count"] - len(reply["messages"])
    if others or not reply["messages"]:
        what = "dead letter" if dead else "message"
        click.echo(f"{plural(others, 'other ' + what) if reply['messages'] else plural(reply['count'], what)}")
