"""``agentos approvals``, ``approve`` and ``deny``: what agents wait for a person to allow, and the answers."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import click

from agentos.userland.cli import completed
from agentos.userland.cli.columns import (
    count_columns,
    cut_middle,
    fit_columns,
    format_table,
    row_width,
    table_width,
    take_columns,
)
from agentos.userland.cli.common import Failed, check_reply, kernel, kernel_options, print_json, print_result, printable
from agentos.userland.cli.times import format_time
from agentos_sdk.encoding.quantities import EXPECTED_DURATION, seconds

CHANGEABLE = "the agent can change before it runs: "  # the kernel's words before a file that a command names
GUTTER = "│ "  # between the kernel's words and what they quote; the kernel's words never have this sign
MAX_ROWS = 30  # of a text that is allowed without having been shown; a longer one has to be opened first
MAX_AGENT_WIDTH, MIN_WHAT_WIDTH = 16, 20  # columns of a table
MAX_NAME_WIDTH = 64  # columns of a name in a sentence
DIGEST_CHARS = 12  # of a digest that says that a text was shown
REMEMBERED = "a remembered answer allows any content"
COLOURS = {"+": "green", "-": "red", "@": "cyan", "…": "yellow"}  # of lines by their sign

Request = Mapping[str, Any]
Remember = Literal["once", "agent", "always"]


@click.command()
@click.argument("number", metavar="[ID]", type=int, required=False)
@click.option("--watch", "-w", is_flag=True, help="Show each request as it comes, and answer it with a key.")
@kernel_options
def approvals(number: int | None, watch: bool, socket_path: str | None, as_json: bool) -> None:
    """List the calls that wait for a person, or show all of one.

    What the agent has chosen stands behind a bar, the kernel's own words before it.

    With --watch, keys answer the request that is shown: y allows it once, n denies it, a allows it always, d shows
    all of it, s the next one; q ends. A long one has to be shown whole by d before it can be allowed. For half a
    second after a request appears keys do nothing, so that no key meets another request than the one that was read.
    """
    if watch and number is not None:
        raise click.UsageError("leave out ID or --watch: it shows all requests")
    if watch:
        from .watch import print_new_requests, watch_requests

        (print_new_requests if as_json else watch_requests)(socket_path)
        return
    with kernel(socket_path) as client:
        reply = check_reply(client.approvals())
    pending = reply["pending"]
    if number is not None:
        request = find_request(reply, number)
        lines = request_lines(request, time.time(), row_width())
        print_json(request) if as_json else print_styled(lines)
        if not as_json and is_long(request):
            click.echo(f"a long text: allow it by `{approve_command(request)}`")
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
@click.option("--any-path", is_flag=True, help="Remember it for all paths of an HTTP request's origin.")
@click.option(
    "--digest", metavar="DIGEST", help="Allow it only if its digest begins so; a long text is only allowed by it."
)
@kernel_options
def approve(
    number: int,
    remember: Remember,
    period: str | None,
    any_path: bool,
    digest: str | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Allow the call with this ID, as `agentos approvals` shows it.

    A long text has to be read first: `agentos approvals ID` shows it, and at its end the command that allows it.
    """
    span = seconds(period)
    if period is not None and not span:
        raise click.BadParameter(f"expected {EXPECTED_DURATION}, got {period!r}", param_hint="--for")
    with kernel(socket_path) as client:
        request = find_request(check_reply(client.approvals()), number)
        check_digest(request, digest)
        if remember != "once" and (marks := changeable_lines(request)):
            for mark in (*marks, [REMEMBERED]):
                for row in line_rows(mark, row_width(), "agentos: "):
                    click.secho(row, fg="yellow", err=True)
        if remember != "once":
            covers = [request["covers_any_path"]] if any_path else request["covers"]
            for words, *quoted in filter(None, covers):
                for row in line_rows([f"remembered for {words}", *quoted], row_width(), "agentos: "):
                    click.echo(row, err=True)
        reply = check_reply(
            client.decide(number, True, remember=remember, for_=span, digest=request["digest"], any_path=any_path)
        )
    print_result(f"allowed: {describe_request(request, row_width())}", reply, as_json)


@click.command()
@click.argument("number", metavar="ID", type=int, shell_complete=completed.approvals)
@click.option("--reason", metavar="TEXT", help="Why; the agent is told.")
@kernel_options
def deny(number: int, reason: str | None, socket_path: str | None, as_json: bool) -> None:
    """Refuse the call with this ID."""
    with kernel(socket_path) as client:
        request = find_request(check_reply(client.approvals()), number)
        reply = check_reply(client.decide(number, False, reason, digest=request["digest"]))
    print_result(f"denied: {describe_request(request, row_width())}", reply, as_json)


def find_request(reply: Mapping[str, Any], number: int) -> Request:
    """The entry with this id in a reply to APPROVALS."""
    for request in reply["pending"]:
        if request["id"] == number:
            found: Request = request
            return found
    unlisted = f", unless it is one of the {reply['omitted']} that aren't listed yet" if reply["omitted"] else ""
    raise Failed(f"no call with the id {number} waits for approval{unlisted}", {"code": "not_found"})


def changeable_lines(request: Request) -> Sequence[Sequence[str]]:
    """The lines about files that the agent can change before its command runs."""
    return [line for line in request["lines"] if line[0] == CHANGEABLE]


def is_long(request: Request) -> bool:
    """Whether its text must be shown whole before it can be allowed: it has many rows of 80 columns."""
    return sum(1 for line in request["lines"] for _ in line_rows(line, 80)) > MAX_ROWS


def approve_command(request: Request) -> str:
    return f"agentos approve {request['id']} --digest {request['digest'][:DIGEST_CHARS]}"


def check_digest(request: Request, digest: str | None) -> None:
    """Raise ``Failed`` if the digest isn't the request's, or is missing where the text is long."""
    number = request["id"]
    if digest is None and is_long(request):
        raise Failed(
            f"request {number} has a long text: `agentos approvals {number}` shows it, and how to allow it",
            {"code": "bad_request"},
        )
    if digest is not None and (len(digest) < DIGEST_CHARS or not request["digest"].startswith(digest)):
        raise Failed(
            f"--digest: expected the digest of request {number}, or at least its first {DIGEST_CHARS} characters, as "
            f"`agentos approvals --json {number}` has it",
            {"code": "conflict"},
        )


# -- For people --------------------------------------------------------------------------------------------------------


def table_lines(pending: Sequence[Request], now: float, width: int) -> Iterator[str]:
    """One line for each request: what it is about stands in the last column, cut where it is long."""
    if not pending:
        yield "no call waits for approval"
        return
    header = ["ID", "AGENT", "CALL", "LEFT", "LINES", "WHAT"]
    rows = [
        [str(one["id"]), name_caller(one), one["call"], describe_left(one, now), str(len(one["lines"]))]
        for one in pending
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=False)]
    room = width - sum(widths) + max(0, widths[1] - MAX_AGENT_WIDTH) - 2 * len(widths)
    rows = [[*row, describe_object(one, max(MIN_WHAT_WIDTH, room))] for row, one in zip(rows, pending, strict=True)]
    fitted, *cells = fit_columns(rows, header, ("AGENT",), width)
    yield from format_table(cells, fitted)
    yield "`agentos approvals ID` shows all of one, `approve ID` and `deny ID` answer"


def name_caller(request: Request) -> str:
    """The path of names down to the caller: an agent may give its child the name of another agent's child."""
    return printable(request["path"] or request["agent"])


def describe_object(request: Request, width: int) -> str:
    """What the first line of its text quotes, cut to a width; what is cut is counted."""
    text = printable(request["lines"][0][-1] if request["lines"] else "").removeprefix(f"{request['call']} ")
    if count_columns(text) <= width:
        return text
    kept = take_columns(text, width - len(f"… {len(text)} more"))
    return f"{kept}… {len(text) - len(kept)} more"


def describe_request(request: Request, width: int) -> str:
    """``EXEC git push, by worker``, within a width."""
    by = f", by {cut_middle(name_caller(request), MAX_NAME_WIDTH)}"
    return f"{request['call']} {describe_object(request, max(24, width - 20 - len(by)))}{by}"


def describe_left(request: Request, now: float) -> str:
    left = max(0, int(request["expires_at"] - now))
    text = f"{left}s" if left < 60 else f"{left // 60}m{left % 60:02}s"
    return text if request["caller_present"] else f"{text}, gone"


def request_lines(request: Request, now: float, width: int) -> Iterator[str]:
    """All that a person has to know of a request. What an agent has chosen stands right of the first bar in a row."""
    yield from wrap_line(f"request {request['id']}: {printable(request['call'])} by {name_caller(request)}", width, "")
    yield from line_rows(["asked by ", request["rule"]], width, "")
    gone = "" if request["caller_present"] else "; its caller has given up"
    yield f"waits since {format_time(request['asked_at'])}, {describe_left(request, now).split(',')[0]} left{gone}"
    for line in request["lines"]:
        yield from line_rows(line, width)
    for words, *quoted in request["covers"]:
        yield from line_rows([f"a remembered answer is for {words}", *quoted], width, "")


def line_rows(line: Sequence[str], width: int, begin: str = "  ") -> Iterator[str]:
    """One line of a text in rows of at most ``width`` columns: what it quotes stands behind a bar in each row."""
    words, *quoted = map(printable, line)
    if not quoted:
        yield from wrap_line(words, width, begin)
        return
    head = begin + words + GUTTER
    if len(head) > width * 2 // 3 and len(words) > 2:  # too long for one row with what is quoted
        yield from wrap_line(words.rstrip(), width, begin)
        head = "      " + GUTTER
    yield from wrap_line(quoted[0], width, head, "      " + GUTTER)


def wrap_line(line: str, width: int, begin: str = "  ", later: str = "      ") -> Iterator[str]:
    """A line in rows of at most ``width`` columns; the first one begins with ``begin``, others with ``later``.

    A terminal shows a character outside ASCII in two columns at most. It must not break lines by itself: the text of an
    agent would stand in the first column.
    """
    row, used = begin, len(begin)
    for char in line.expandtabs():
        columns = 1 if char.isascii() else 2
        if used + columns > width:
            yield row
            row, used = later, len(later)
        row += char
        used += columns
    yield row


def print_styled(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(style(line))


def style(line: str) -> str:
    """The line in the colour of its sign; of a changed line's later rows only the first has it."""
    if line.startswith(f"  {CHANGEABLE.rstrip()}"):
        return click.style(line, fg="yellow", bold=True)
    colour = COLOURS.get(line[2:3]) if line.startswith("  ") else None
    return click.style(line, fg=colour) if colour else line


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
