"""``agentos audit``: shows, exports and verifies the audit log from its files, with or without a running kernel."""

import errno
import os
import pwd
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from agentos.userland.cli import completed
from agentos.userland.cli.columns import table_width
from agentos.userland.cli.common import (
    Failed,
    json_option,
    parse_number,
    plural,
    print_json,
    print_json_line,
    printable,
)
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option
from agentos.userland.cli.times import FORMS, format_time, read_time
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.opcodes import Op

from .summary import Summary, summary_lines
from .table import Entry, Table

if TYPE_CHECKING:
    from agentos.services.audit.chain import Row
    from agentos.services.audit.query import Query
    from agentos.services.audit.verify import Report

POLL_INTERVAL = 0.3  # seconds between checks for new entries
MAX_SHOWN = 100_000
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what reads a file gets none of them

F = TypeVar("F", bound=Callable[..., Any])


def filter_options(command: F) -> F:
    """Add the options that select entries."""
    for option in (
        click.option("--until", metavar="WHEN", help="Before then; written in the same ways."),
        click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}."),
        click.option("--decision", type=click.Choice(["allow", "ask", "deny"]), help="How it was decided."),
        click.option("--call", "calls", metavar="CALL", multiple=True, help="Such as WRITE; may be given again."),
        click.option(
            "--agent",
            metavar="NAME|ID",
            shell_complete=completed.agents,
            help="As NAME; an id holds for one run of the kernel.",
        ),
        state_dir_option(),
    ):
        command = option(command)
    return command


class AuditGroup(click.Group):
    """A first word that is no subcommand is the caller's name: ``agentos audit worker``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, rest, _ = self.make_parser(ctx).parse_args(list(args))
        if rest and rest[0] not in self.commands:
            if options.get("agent") is not None:
                raise click.UsageError(f"the caller is given twice, by --agent and by {rest[0]!r}", ctx)
            args = [*args[: len(args) - len(rest)], "--agent", *rest]
        return super().parse_args(ctx, args)


@click.group(cls=AuditGroup, invoke_without_command=True, subcommand_metavar="[NAME | COMMAND [ARGS]...]")
@filter_options
@click.option(
    "-n", "--tail", "number", type=click.IntRange(1, MAX_SHOWN), default=50, show_default=True, help="How many."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@json_option
@click.pass_context
def audit(
    context: click.Context, /, state_dir: Path | None, number: int, follow: bool, as_json: bool, **filters: Any
) -> None:
    """Show the latest entries of the audit log.

    Those of the caller NAME, or of all. It is read from the files of the state directory, so no kernel has to run.
    """
    context.obj = state_dir
    if context.invoked_subcommand is not None:
        refuse_group_options(context, context.invoked_subcommand)
        return
    from agentos.services.audit.query import read_newest

    query = make_query(**filters)
    if follow and query.until is not None:
        raise click.UsageError("leave out --until or --follow: what is still to come has no end")
    show = print_json_lines if as_json else Table()
    with log_directory(state_dir) as directory:
        latest = read_newest(directory, query, number)
        show([row.wire_fields for row in latest])
        if not latest:
            explain_no_match(directory, query)
        if follow:
            follow_entries(directory, query, latest, show)


def refuse_group_options(context: click.Context, name: str) -> None:
    """Refuse options before a subcommand, except --state-dir: they would have no effect."""
    for option in audit.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name != "state_dir":
            takes = any(option.name == each.name for each in audit.commands[name].params)
            raise click.UsageError(
                f"write {option.opts[-1]} behind {name}" if takes else f"{name} takes no {option.opts[-1]}"
            )


@audit.command()
@filter_options
@click.pass_obj
def export(given: Path | None, /, state_dir: Path | None, **filters: Any) -> None:
    """Print all entries as JSON, one in a line, oldest first."""
    query = make_query(**filters)
    with log_directory(state_dir or given) as directory:
        entry = None
        for entry in iterate_entries(directory, query):
            print_json_lines([entry])
        if entry is None:
            explain_no_match(directory, query)


@audit.command()
@click.argument("name", shell_complete=completed.agents)
@click.option("--since", metavar="WHEN", default="1d", show_default=True, help=f"From then on: {FORMS}.")
@click.option("--until", metavar="WHEN", help="Before then; written in the same ways.")
@state_dir_option()
@json_option
@click.pass_obj
def summary(
    given: Path | None, /, name: str, since: str, until: str | None, state_dir: Path | None, as_json: bool
) -> None:
    """Count what the caller NAME (or with that id) did.

    Lives, calls, files, commands, hosts, messages, tokens and refusals, with the most frequent of each.
    """
    query, found = make_query(name, (), None, since, until), Summary()
    with log_directory(state_dir or given) as directory:
        for entry in iterate_entries(directory, query):
            found.add(entry)
        if not found.entries:
            explain_no_match(directory, query)
    if as_json:
        print_json({"name": name, "since": query.since, "until": query.until, **found.as_json()})
        return
    for line in summary_lines(name, found, table_width()):
        click.echo(line)


@audit.command()
@state_dir_option()
@click.option("--head", metavar="HASH", help="One that an earlier verify printed: it has to be in the log still.")
@json_option
@click.pass_obj
def verify(given: Path | None, /, state_dir: Path | None, head: str | None, as_json: bool) -> None:
    """Check whether the audit log was changed, cut or reordered.

    The exit status is 0 if it is as it was written, and 1 if it isn't. Keep the hash that is printed somewhere else:
    a process with the kernel's uid can rewrite all files, but not so that this hash is in them.
    """
    from agentos.services.audit.verify import verify_log

    if head is not None and not re.fullmatch(r"[0-9a-f]{64}", head):
        raise click.BadParameter(
            "expected 64 hexadecimal digits, as an earlier verify printed them", param_hint="--head"
        )
    with log_directory(state_dir or given) as directory:
        report = verify_log(directory, head)
    if as_json:
        print_json(
            {
                "sound": report.sound,
                "segments": report.segments,
                "entries": report.entries,
                "first": report.first,
                "last": report.last.seq,
                "head": report.last.hash,
                "unheaded": report.unheaded,
                "faults": [{"entry": fault.seq, "error": fault.text} for fault in report.faults],
            }
        )
    else:
        for line in report_lines(report):
            click.echo(line)
    sys.exit(0 if report.sound else 1)


def report_lines(report: "Report") -> Iterator[str]:
    if report.sound:
        numbers = f"{report.entries} entries, {report.first} to {report.last.seq}"
        yield f"{click.style('sound', fg='green')}: {numbers}, in {plural(report.segments, 'segment')}"
    else:
        yield f"{click.style('not as it was written', fg='red')}:"
        yield from (f"  {printable(str(fault))}" for fault in report.faults)
    if report.unheaded:
        why = "a kernel is writing, or was killed, or the file was cut"
        yield f"(not in the head file: {report.unheaded} at the end: {why})"
    yield f"head {report.last.seq} {report.last.hash}"


# -- Which entries, and where ------------------------------------------------------------------------------------------


@contextmanager
def log_directory(given: Path | None) -> Iterator[Path]:
    """The log's directory. An error while reading it ends the command with one line; those of the output are raised."""
    state = given or find_state_dir()
    directory = state.absolute() / "audit"
    try:
        os.listdir(directory)
        yield directory
    except FileNotFoundError:
        raise Failed(f"there is no audit log in {state}: a kernel makes one; say where with --state-dir") from None
    except PermissionError:
        may = " and ".join(dict.fromkeys([owner_name(directory), "root"]))
        raise Failed(f"{directory}: only {may} may read it") from None
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error) as error:
        if getattr(error, "errno", None) in OUTPUT_ERRORS:
            raise
        raise Failed(f"{directory}: {error}: `agentos audit verify` tells more") from None


def owner_name(path: Path) -> str:
    """The user that owns the first directory on the way up that can be examined."""
    for each in (path, *path.parents):
        try:
            uid = each.stat().st_uid
            return pwd.getpwuid(uid).pw_name
        except PermissionError:
            continue
        except KeyError:
            return f"the user {uid}"
    return "its owner"


def make_query(
    agent: str | None, calls: Sequence[str], decision: str | None, since: str | None, until: str | None
) -> "Query":
    from agentos.services.audit.query import Query

    number = parse_number(agent) if agent is not None and agent.isdecimal() else None
    return Query(
        agent=number,
        name=agent if number is None else None,
        calls=[check_call_name(call.upper()) for call in calls] or None,
        decision=decision,
        since=read_time(since, "--since"),
        until=read_time(until, "--until"),
    )


def iterate_entries(directory: Path, query: "Query", **conditions: Any) -> Iterator[Entry]:
    """All entries that match, oldest first; ``conditions`` replace those of the query."""
    from msgspec.structs import replace

    from agentos.services.audit.query import iterate_all

    return (row.wire_fields for row in iterate_all(directory, replace(query, **conditions)))


def check_call_name(call: str) -> str:
    """Check the name of a call: with a typo the result would be empty, as if nothing had happened."""
    from agentos.services.audit.categories import CATEGORIES

    names = {*Op.__members__, *CATEGORIES["kernel"], *CATEGORIES["agents"]}
    if call in names:
        return call
    raise click.BadParameter(f"no call is named {call!r}{suggest_name(call, sorted(names))}", param_hint="--call")


def follow_entries(
    directory: Path, query: "Query", latest: Sequence["Row"], show: Callable[[Sequence[Entry]], None]
) -> None:
    """Show new entries until Ctrl-C."""
    try:
        sys.stdout.flush()
        for page in new_entries(directory, query, latest[-1].seq if latest else 0):
            show([row.wire_fields for row in page])
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)


def new_entries(directory: Path, query: "Query", after: int) -> Iterator[Sequence["Row"]]:
    """The entries that come behind a number."""
    from msgspec.structs import replace

    from agentos.services.audit.query import PAGE_ENTRIES, Query, read_newest, read_oldest

    while True:
        newest = read_newest(directory, Query(), 1)
        last = newest[0].seq if newest else 0  # later entries are left to the next round
        while after < last:
            page = read_oldest(directory, replace(query, after=after), PAGE_ENTRIES)
            after = max([row.seq for row in page] + ([last] if len(page) < PAGE_ENTRIES else []))
            yield page
        time.sleep(POLL_INTERVAL)


def explain_no_match(directory: Path, query: "Query") -> None:
    """Tell on stderr why nothing was shown, so that a typo isn't mistaken for an empty log."""
    from agentos.services.audit.query import Query, read_newest, read_oldest

    first, last = read_oldest(directory, Query(), 1), read_newest(directory, Query(), 1)
    if not first or not last:
        text = "the log has no entry"
    elif query.name is not None and not read_newest(directory, Query(name=query.name), 1):
        text = f"no caller named {query.name!r} is in the log{suggest_name(query.name, audit.commands)}"
    elif query.agent is not None and not read_newest(directory, Query(agent=query.agent), 1):
        text = f"no caller with the id {query.agent} is in the log"
    else:
        count = last[0].seq - first[0].seq + 1
        text = f"no entry matches (of {count}, since {format_time(first[0].at)})"
    click.echo(f"agentos: {text}", err=True)


def print_json_lines(entries: Sequence[Entry]) -> None:
    for entry in entries:
        print_json_line(entry)
