"""``agentos logs``: shows an agent's output."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from .common import agent_fields, check_reply, json_option, kernel, print_json, socket_option
from .output_text import printable_output, shows_colours


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the agent has ended.")
@click.option("-n", "--tail", type=click.IntRange(0, 2000), default=100, show_default=True, help="How many lines.")
@click.option("--raw", is_flag=True, help="Let all control sequences through, not only colours.")
@json_option
@socket_option
def logs(name: str, follow: bool, tail: int, raw: bool, as_json: bool, socket_path: str | None) -> None:
    """Show the last lines that an agent wrote.

    NAME is its name or its id. Control characters are escaped, but on a terminal colours are shown.
    """
    with kernel(socket_path) as client:
        if not follow:
            pages = iter([check_reply(client.logs(**agent_fields(name), tail=tail))])
        else:
            pages = client.follow_logs(**agent_fields(name), tail=tail)
        try:
            for page in pages:
                print_page(page, as_json, raw)
        except KeyboardInterrupt:
            sys.exit(130)


def print_page(page: Mapping[str, Any], as_json: bool, raw: bool) -> None:
    if page["missed"] and not as_json:
        click.secho(f"({page['missed']} older lines are no longer kept)", fg="bright_black", err=True)
    for line in page["lines"]:
        if as_json:
            print_json(line)
        else:
            stamp = time.strftime("%H:%M:%S", time.localtime(line["at"]))
            colour = {"stderr": "red", "kernel": "bright_black"}.get(line["stream"])
            text = line["text"] if raw else printable_output(line["text"], shows_colours())
            text = click.style(text, fg=colour) if colour is not None else text
            click.echo(f"{stamp} {line['stream']:6} | {text}", color=raw or None)
