"""``agentos events``: past events of the kernel, and new ones as they come."""

import json
import math
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import define, field

from agentos.userland.cli import completed
from agentos.userland.cli.columns import table_width
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    kernel_options,
    parse_agent,
    plural,
    print_json_line,
)
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option
from agentos.userland.cli.output_text import shows_colours
from agentos.userland.cli.times import FORMS, read_time
from agentos_sdk import AgentOSClient
from agentos_sdk.errors import PermissionDenied

from .event_text import Event, find_caller, find_named, format_event

if TYPE_CHECKING:
    from agentos.services.logs.pattern import Pattern

DEFAULT_TAIL = 100
MAX_TAIL = 10_000  # all that the kernel keeps
PAGE = 1000  # events of one reply
POLL_SECONDS = 30.0
STATE = "AGENT_STATE"  # follows another event that says more
CHANGED = "STATE_CHANGED"


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    shell_complete=completed.agents,
    help="Only about this agent; also its id.",
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only this type, such as AGENT_EXITED or AGENT_*.")
@click.option("-n", "--tail", type=click.IntRange(0, MAX_TAIL), help="How many; default 100, with --since all.")
@click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}.")
@click.option("--until", metavar="WHEN", help="Before then; written in the same ways.")
@click.option("--grep", metavar="RE", help="Only events in whose line this regular expression is found.")
@click.option("--stored", is_flag=True, help="All that is on disk, also older events; no kernel has to run.")
@state_dir_option("For --stored: as `agentos run`.")
@kernel_options
def events(
    follow: bool,
    agents: tuple[str, ...],
    types: tuple[str, ...],
    tail: int | None,
    since: str | None,
    until: str | None,
    grep: str | None,
    stored: bool,
    state_dir: Path | None,
    as_json: bool,
    socket_path: str | None,
) -> None:
    """Show what happened in the kernel.

    These are the last 100 events, or with --since all from then on. --agent and --type may be repeated. AGENT_STATE is
    shown only where --type names it.
    """
    begin, end = read_time(since, "--since") or 0.0, read_time(until, "--until") or math.inf
    if follow and (stored or until is not None):
        raise click.UsageError("leave out --follow, or --until and --stored: what is still to come has no end")
    first = deque[Event](maxlen=DEFAULT_TAIL if tail is None and since is None else tail)
    hidden, pattern = {STATE} - set(types), read_pattern(grep)
    if stored:
        printer = Printer(None, as_json, "", pattern)
        for event in read_stored_events(state_dir, begin, end, types or ("*",), agents):
            first.extend(printer.choose(select([event], hidden, None)))
        printer.print(first)
        return
    try:
        with kernel(socket_path) as client:
            about = [parse_agent(agent) for agent in agents]
            ids = find_agents(client, about)
            boot = check_reply(client.subscribe(list(types) or ["*"], agents=about or None, since=0))["boot"]
            if ids and (not types or any(matches(one, CHANGED) for one in types)):
                check_reply(client.subscribe([CHANGED], agents=ids, since=0))
            printer = Printer(client, as_json, boot, pattern)
            present = boot if about else None
            for page in read_pages(client):
                printer.print_missed(page["missed"])
                within = [each for each in page["events"] if begin <= each["at"] < end]
                first.extend(printer.choose(select(within, hidden, present)))
            printer.print(first)
            while follow:
                page = check_reply(client.poll_events(PAGE, POLL_SECONDS))
                printer.print_missed(page["missed"])
                printer.print(printer.choose(select(page["events"], hidden, present)))
    except Failed as error:
        if error.reply["code"] != "unavailable":
            raise
        raise Failed(f"{error.message}; `agentos events --stored` shows those on disk", error.reply) from None
    except KeyboardInterrupt:
        sys.exit(130)


def read_stored_events(
    state_dir: Path | None, begin: float, end: float, types: Sequence[str], agents: Collection[str]
) -> Iterator[Event]:
    """The events on disk of these types and about one of these agents, by their names; about all without any."""
    from agentos.services.event_log.past import read_stored

    if any(agent.isdecimal() for agent in agents):
        raise click.UsageError("an id is of one run of the kernel: with --stored, give --agent a name")
    place = (state_dir or find_state_dir()).absolute() / "events"
    try:
        found = read_stored(place, begin, end)
    except OSError as error:
        raise Failed(f"{place}: {error.strerror}; say where with --state-dir") from None
    for one in found:
        if any(matches(wanted, one.type) for wanted in types) and (not agents or {*agents} & {*one.names}):
            yield json.loads(one.text)


def read_pattern(given: str | None) -> "Pattern | None":
    """The pattern of ``--grep``."""
    from agentos.services.logs.pattern import Pattern, PatternError

    try:
        return Pattern(given) if given is not None else None
    except PatternError as error:
        raise Failed(f"grep: {error}") from None


def read_pages(client: AgentOSClient) -> Iterator[Mapping[str, Any]]:
    """The pages of past events."""
    while (page := check_reply(client.poll_events(PAGE)))["count"] or page["missed"]:
        yield page


def select(events: Sequence[Event], hidden: Collection[str], present: str | None) -> Sequence[Event]:
    """The events that are shown. Of keys only those of the boot ``present``, if given: an owner's id is of a boot."""
    shown = (event for event in events if event["type"] not in hidden)
    return [event for event in shown if present in (None, event["boot"]) or event["type"] != CHANGED]


def matches(wanted: str, kind: str) -> bool:
    """Whether an event type is the wanted one, or matches it as a pattern."""
    return wanted == kind or (wanted.endswith("*") and kind.startswith(wanted[:-1]))


def find_agents(client: AgentOSClient, agents: Sequence[int | str]) -> list[int]:
    """The ids of the agents that have one of these names: changes of keys are found by ids alone.

    Fails if there is no such agent or other caller, and no event about it is kept.
    """
    listed = list_names(client) if agents else {}
    for agent in agents:
        if agent not in listed and agent not in listed.values():
            check_reply(client.subscribe(["*"], agents=[agent], since=0))
            if next(read_pages(client), None) is None:
                which = f"has the id {agent}" if isinstance(agent, int) else f"is called {agent!r}"
                raise Failed(f"no agent {which}", {"code": "not_found"})
            check_reply(client.unsubscribe(all=True))
    return [number for number, name in listed.items() if name in agents]


def list_names(client: AgentOSClient) -> dict[int, str]:
    """The names of agents by id, also of those that have ended; none where rules deny LIST."""
    with suppress(PermissionDenied):
        return {int(agent["id"]): str(agent["name"]) for agent in client.list_agents(all=True)}
    return {}


@define
class Printer:
    """Prints events to stdout, and to stderr how many are missing between them."""

    client: AgentOSClient | None  # that knows the names of callers; None: the events' own names have to do
    as_json: bool
    present: str  # the id of the present boot
    pattern: "Pattern | None"  # that lines must match
    boot: str | None = None
    names: dict[tuple[str, int], str] = field(factory=dict)  # of callers, by boot and id

    def choose(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events whose lines match; learns the names in all of them."""
        self._learn_names(events)
        if self.pattern is None:
            return events
        return [each for each in events if self.pattern.matches(format_event(each, None, False, self._caller(each)))]

    def _caller(self, event: Event) -> str | None:
        return self.names.get((event["boot"], find_caller(event)))

    def print(self, events: Sequence[Event]) -> None:
        """Print events; a line on stderr says that the kernel was restarted in between."""
        coloured = shows_colours()
        width = table_width() if sys.stdout.isatty() else None
        for event in events:
            if self.boot not in (None, event["boot"]):
                self._note("the kernel was restarted")
            self.boot = event["boot"]
            if self.as_json:
                print_json_line(event)
            else:
                click.echo(format_event(event, width, coloured, self._caller(event)))
        sys.stdout.flush()

    def _learn_names(self, events: Sequence[Event]) -> None:
        """Remember the names that events have; ask for those of callers that are known only by their ids."""
        if self.as_json and self.pattern is None:
            return
        for event in events:
            if (named := find_named(event)) is not None:
                self.names[event["boot"], named[0]] = named[1]
        callers = {find_caller(event) for event in events if event["boot"] == self.present} - {0}
        if self.client is not None and any((self.present, caller) not in self.names for caller in callers):
            self.names |= {(self.present, number): name for number, name in list_names(self.client).items()}

    def print_missed(self, count: int) -> None:
        if count:
            self._note(f"{plural(count, 'event')} more: --stored shows those that are on disk")

    def _note(self, text: str) -> None:
        if not self.as_json:
            sys.stdout.flush()
            click.secho(f"({text})", fg="bright_black", err=True)
