"""``agentos approvals``, ``approve`` and ``deny``: what agents wait for a person to allow, and the answers."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import click

from agentos_sdk.quantities import EXPECTED_DURATION, seconds

from . import completed
from .common import (
    Failed,
    check_reply,
    cut_middle,
    fit_columns,
    format_table,
    json_option,
    kernel,
    print_json,
    print_result,
    printable,
    socket_option,
    table_width,
    text_width,
)
from .times import format_time

CHANGEABLE = "the agent can change "  # how the kernel begins the line about files that a command names
REMEMBERED = "a remembered answer allows any content"
COLOURS = {"+": "green", "-": "red", "@": "cyan", "…": "yellow"}  # of lines by their sign

Request = Mapping[str, Any]
Remember = Literal["once", "agent", "always"]


@click.command()
@click.argument("number", metavar="[ID]", type=int, required=False)
@click.option("--watch", "-w", is_flag=True, help="Show each request as it comes, and answer it with a key.")
@json_option
@socket_option
def approvals(number: int | None, watch: bool, socket_path: str | None, as_json: bool) -> None:
    """List the calls that wait for a person, or show all of one.

    With --watch, keys answer the request that is shown: y allows it once, n denies it, a allows it always, d shows
    all of it, s the next one; q ends. For half a second after a request appears keys do nothing, so that no key meets
    another request than the one that was read.
    """
    if watch and number is not None:
        raise click.UsageError("leave out ID or --watch: it shows all requests")
    if watch:
        from .approvals_watch import print_new_requests, watch_requests

        (print_new_requests if as_json else watch_requests)(socket_path)
        return
    with kernel(socket_path) as client:
        reply = check_reply(client.approvals())
    pending = reply["pending"]
    if number is not None:
        request = find_request(reply, number)
        lines = request_lines(request, time.time(), text_width())
        print_json(request) if as_json else print_styled(lines)
    elif as_json:
        print_json(pending)
    else:
        for line in table_lines(pending, time.time(), table_width()):
            click.echo(line)
        if reply["omitted"]:
            click.echo(f"{reply['omitted']} more are listed once some of these are decided")


@click.command()
@click.argument("number", metavar="ID", type=int, shell_complete=completed.approvals)
@click.option(
    "--remember",
    type=click.Choice(["once", "agent", "always"]),
    default="once",
    help="Allow the same call without asking: to this agent (agent), or to each of its name (always).",
)
@click.option("--for", "period", metavar="TIME", help="How long the answer holds, such as 1h.")
@json_option
@socket_option
def approve(number: int, remember: Remember, period: str | None, socket_path: str | None, as_json: bool) -> None:
    """Allow the call with this ID, as `agentos approvals` shows it."""
    span = seconds(period)
    if period is not None and not span:
        raise click.BadParameter(f"expected {EXPECTED_DURATION}, got {period!r}", param_hint="--for")
    with kernel(socket_path) as client:
        request = find_request(check_reply(client.approvals()), number)
        if remember != "once" and (mark := changeable_line(request)) is not None:
            for line in (*wrap_line(f"agentos: {printable(mark)}", text_width(), ""), f"agentos: {REMEMBERED}"):
                click.secho(line, fg="yellow", err=True)
        reply = check_reply(client.decide(number, True, remember=remember, for_=span, digest=request["digest"]))
    print_result(f"allowed: {describe_request(request, text_width())}", reply, as_json)


@click.command()
@click.argument("number", metavar="ID", type=int, shell_complete=completed.approvals)
@click.option("--reason", metavar="TEXT", help="Why; the agent is told.")
@json_option
@socket_option
def deny(number: int, reason: str | None, socket_path: str | None, as_json: bool) -> None:
    """Refuse the call with this ID."""
    with kernel(socket_path) as client:
        request = find_request(check_reply(client.approvals()), number)
        reply = check_reply(client.decide(number, False, reason, digest=request["digest"]))
    print_result(f"denied: {describe_request(request, text_width())}", reply, as_json)


def find_request(reply: Mapping[str, Any], number: int) -> Request:
    """The entry with this id in a reply to APPROVALS."""
    for request in reply["pending"]:
        if request["id"] == number:
            found: Request = request
            return found
    unlisted = f", unless it is one of the {reply['omitted']} that aren't listed yet" if reply["omitted"] else ""
    raise Failed(f"no call with the id {number} waits for approval{unlisted}", {"code": "not_found"})


def changeable_line(request: Request) -> str | None:
    """The line about files that the agent can change before its command runs, if there is one."""
    return next((line for line in request["shown"].split("\n") if line.startswith(CHANGEABLE)), None)


# -- For people --------------------------------------------------------------------------------------------------------


def table_lines(pending: Sequence[Request], now: float, width: int) -> Iterator[str]:
    """One line for each request: what it is about stands in the last column, cut where it is long."""
    if not pending:
        yield "no call waits for approval"
        return
    header = ["ID", "AGENT", "CALL", "LEFT", "WHAT"]
    rows = [
        [str(one["id"]), printable(one["agent"]), one["call"], describe_left(one, now), describe_object(one)]
        for one in pending
    ]
    yield from (line for line in format_fitting(rows, header, width))
    yield "`agentos approvals ID` shows all of one, `approve ID` and `deny ID` answer"


def format_fitting(rows: list[list[str]], header: list[str], width: int) -> Iterator[str]:
    fitted, *cells = fit_columns(rows, header, ("AGENT", "WHAT"), width)
    yield from format_table(cells, fitted)


def describe_object(request: Request) -> str:
    """The first line of its text, without the call's name."""
    first: str = printable(request["shown"].split("\n", 1)[0])
    return first.removeprefix("$ ").removeprefix(f"{request['call']} ")


def describe_request(request: Request, width: int) -> str:
    """``EXEC git push, by worker``, within a width."""
    by = f", by {printable(request['agent'])}"
    return f"{request['call']} {cut_middle(describe_object(request), max(20, width - 20 - len(by)))}{by}"


def describe_left(request: Request, now: float) -> str:
    left = max(0, int(request["expires_at"] - now))
    text = f"{left}s" if left < 60 else f"{left // 60}m{left % 60:02}s"
    return text if request["caller_present"] else f"{text}, gone"


def request_lines(request: Request, now: float, width: int) -> Iterator[str]:
    """All that a person has to know of a request. Only the kernel's own words stand in the first column."""
    yield f"request {request['id']}: {printable(request['call'])} by {printable(request['agent'])}"
    yield from wrap_line(f"asked by {printable(request['rule'])}", width, "")
    gone = "" if request["caller_present"] else "; its caller has given up"
    yield f"waits since {format_time(request['asked_at'])}, {describe_left(request, now).split(',')[0]} left{gone}"
    for line in request["shown"].split("\n"):
        yield from wrap_line(printable(line), width)


def wrap_line(line: str, width: int, begin: str = "  ") -> Iterator[str]:
    """A line in rows of at most ``width`` columns; the first one begins with ``begin``, later ones with six spaces.

    A terminal shows a character outside ASCII in two columns at most. It must not break lines by itself: the text of an
    agent would stand in the first column.
    """
    row, used = begin, len(begin)
    for char in line:
        columns = 1 if char.isascii() else 2
        if used + columns > width:
            yield row
            row, used = "      ", 6
        row += char
        used += columns
    yield row


def print_styled(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(style(line))


def style(line: str) -> str:
    """The line in the colour of its sign; of a changed line's later rows only the first has it."""
    if line.startswith(f"  {CHANGEABLE}"):
        return click.style(line, fg="yellow", bold=True)
    colour = COLOURS.get(line[2:3]) if line.startswith("  ") else None
    return click.style(line, fg=colour) if colour else line


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
