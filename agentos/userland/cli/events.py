"""``agentos events``: past events of the kernel, and new ones as they come."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
from attrs import define

from agentos_sdk import AgentOSClient

from .common import check_reply, json_option, kernel, plural, print_json, socket_option, table_width
from .event_text import Event, format_event
from .output_text import shows_colours
from .times import FORMS, read_time

SHOWN_FIRST = 100  # events, if no time is given
PAGE = 1000  # events of one reply
POLL_SECONDS = 30.0
STATE = "AGENT_STATE"  # follows another event that says more


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Only about this agent; also its id.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only this type, such as AGENT_EXITED or AGENT_*.")
@click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}.")
@json_option
@socket_option
def events(
    follow: bool,
    agents: tuple[str, ...],
    types: tuple[str, ...],
    since: str | None,
    as_json: bool,
    socket_path: str | None,
) -> None:
    """Show what happened in the kernel.

    These are the last 100 events, or with --since all from then on. --agent and --type may be repeated. AGENT_STATE is
    shown only where --type names it.
    """
    begin = read_time(since, "--since")
    printer = Printer(as_json, without_states=STATE not in types)
    first = deque[Event](maxlen=SHOWN_FIRST if begin is None else None)
    try:
        with kernel(socket_path) as client:
            about = [int(agent) if agent.isdecimal() else agent for agent in agents]
            check_reply(client.subscribe(list(types) or ["*"], agents=about or None, since=0))
            for page in read_pages(client):
                printer.print_missed(page["missed"])
                first.extend(event for event in page["events"] if event["at"] >= (begin or 0.0))
            printer.print(first)
            while follow:
                page = check_reply(client.poll_events(PAGE, POLL_SECONDS))
                printer.print_missed(page["missed"])
                printer.print(page["events"])
    except KeyboardInterrupt:
        sys.exit(130)


def read_pages(client: AgentOSClient) -> Iterator[Mapping[str, Any]]:
    """The pages of past events."""
    while (page := check_reply(client.poll_events(PAGE)))["count"] or page["missed"]:
        yield page


@define
class Printer:
    """Prints events to stdout, and to stderr how many are missing between them."""

    as_json: bool
    without_states: bool
    boot: str | None = None

    def print(self, events: Iterable[Event]) -> None:
        """Print events; a line on stderr says that the kernel was restarted in between."""
        coloured = shows_colours()
        width = table_width() if sys.stdout.isatty() else None
        for event in events:
            if self.without_states and event["type"] == STATE:
                continue
            if self.boot not in (None, event["boot"]):
                self._note("the kernel was restarted")
            self.boot = event["boot"]
            if self.as_json:
                print_json(event)
            else:
                click.echo(format_event(event, width, coloured))
        sys.stdout.flush()

    def print_missed(self, count: int) -> None:
        if count:
            self._note(f"{plural(count, 'event')} more: no longer kept")

    def _note(self, text: str) -> None:
        if not self.as_json:
            sys.stdout.flush()
            click.secho(f"({text})", fg="bright_black", err=True)
