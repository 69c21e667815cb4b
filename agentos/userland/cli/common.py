"""Shared by the commands: the connection, one-line errors, and JSON output."""

import gc
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from agentos_sdk import AgentOSClient, AgentOSError, CallError, ConnectionFailed, default_socket
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.project import CONFIG, is_own_config

from .columns import cut_middle, fit_columns, format_table, table_width

NO_AGENT = re.compile(r"no agent (?:or group )?is called '([^']+)'$")
REPLY_MARGIN = 10.0  # seconds that a reply may take beyond the call's own waiting time
MAX_SET_BYTES = 256 << 10  # bytes of JSON; the limit of SET_PERMS
MAX_ERROR_CHARS = 1_000  # of a line
CONTINUATION = "  | "  # before all lines of a message but the first
MAX_DIGITS = 18  # of a number in an argument: it fits into 64 bits
# Printable by category, but nothing is seen of them; U+FE0E and U+FE0F only choose an emoji's form.
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
MAX_FILE_BYTES = 4 << 20  # of a configuration, and of any other text that a command is given by the name of a file

F = TypeVar("F", bound=Callable[..., Any])

socket_option = click.option("--socket", "socket_path", metavar="PATH", help="The kernel's socket.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@contextmanager
def without_collections() -> Iterator[None]:
    """Load modules a sixth faster: nearly all that they make stays, and no later collection goes through it.

    To collect afterwards would take 50 ms, for 1 MiB.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def kernel_options(command: F) -> F:
    """Add ``--json`` and ``--socket``."""
    return json_option(socket_option(command))


class Failed(click.ClickException):
    """An error in one line, with advice; further lines are the output of an agent that didn't start.

    With ``--json`` it is an object on stdout, as a failed call's reply: ``reply``, where that was the error.
    """

    code = "bad_request"

    def __init__(self, message: str, reply: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        context = click.get_current_context(silent=True)
        self.as_json = context is not None and bool(context.params.get("as_json"))
        self.reply = {"success": False, "code": self.code} | dict(reply or {}) | {"error": message}

    def show(self, file: Any = None) -> None:
        if self.as_json:
            print_json(self.reply)
            return
        # As on a kernel's console: agents and archives choose a part of some errors.
        for number, line in enumerate(f"agentos: {self.message}".splitlines()):
            print_error(CONTINUATION + line if number else line)


def socket_path(given: str | None) -> str:
    """The socket's path: --socket, else AGENTOS_SOCKET, else that of the current directory's project."""
    return given or default_socket()


def default_config(file: Path) -> bool:
    """Whether the file that a command takes unnamed is there; fails if it belongs to another user."""
    try:
        return is_own_config(str(file))
    except ConnectionFailed as error:
        raise Failed(str(error)) from None


def project_directory() -> Path | None:
    """The current directory if it has a configuration file; fails as :func:`default_config` does."""
    return Path.cwd() if default_config(Path(CONFIG)) else None


def check_default(file: Path) -> None:
    """Fail if the command's file wasn't named and belongs to another user."""
    if click.get_current_context().get_parameter_source("file") is ParameterSource.DEFAULT:
        default_config(file)


class Seconds(click.FloatRange):
    """An option's seconds within bounds; click takes nan for any number's equal."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return seconds


@contextmanager
def kernel(given: str | None) -> Iterator[AgentOSClient]:
    """A connected client. A connection error ends the command with one line."""
    try:
        with AgentOSClient(socket_path(given), REPLY_MARGIN) as client, suggesting_names(client):
            yield client
    except CallError as error:
        raise Failed(str(error), {**error.details, "code": error.code}) from None
    except AgentOSError as error:
        raise Failed(str(error), {"code": "unavailable"}) from None


@contextmanager
def suggesting_names(client: AgentOSClient) -> Iterator[None]:
    """Add the near name of an agent to an error that says that there is none of that name."""
    try:
        yield
    except (CallError, Failed) as error:
        failed = error if isinstance(error, Failed) else Failed(str(error), {**error.details, "code": error.code})
        missing = NO_AGENT.match(failed.message)
        if missing is None:
            raise
        message = failed.message + suggest_name(missing[1], [agent["name"] for agent in client.list_agents(all=True)])
        raise Failed(message, failed.reply) from None


def check_reply(reply: Any) -> Any:
    """The reply; raises :class:`Failed` if the call failed."""
    if isinstance(reply, Mapping) and "error" in reply and not reply.get("success", False):
        raise Failed(str(reply["error"]), reply)
    return reply


def print_json(value: object) -> None:
    """Print a result: in one line, or on a terminal indented."""
    click.echo(json.dumps(value, indent=None if not sys.stdout.isatty() else 2))


def print_json_line(value: object) -> None:
    """Print one of many values, each in a line."""
    click.echo(json.dumps(value))


def print_result(sentence: str, reply: object, as_json: bool) -> None:
    """Print the result: a sentence, or with --json the kernel's reply."""
    if as_json:
        print_json(reply)
    else:
        click.echo("\n".join(map(printable, sentence.split("\n"))))


def print_lines(lines: Iterable[str], value: object = None, as_json: bool = False) -> None:
    """Print lines with control characters escaped, or with --json the value."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        click.echo(printable(line))


def print_table(
    rows: list[list[str]],
    header: list[str],
    elastic: Collection[str] = (),
    empty: str = "",
    value: object = None,
    as_json: bool = False,
) -> None:
    """Print a table, or with --json the value. Cells of ``elastic`` columns are cut; without rows ``empty`` is said."""
    if as_json:
        print_json(value)
        return
    if empty and not rows:
        click.echo(empty)
        return
    rows = [[*map(printable, row)] for row in rows]
    if elastic:
        header, *rows = fit_columns(rows, header, elastic, table_width())
    for number, line in enumerate(format_table(rows, header)):
        click.echo(click.style(line, bold=not number))


def read_stdin(most: int) -> str:
    """All of stdin as text; fails if it has more than ``most`` bytes."""
    return _decode("stdin", sys.stdin.buffer.read(most + 1), most)


def read_text_file(file: Path, most: int = MAX_FILE_BYTES) -> str:
    """The text of a file, or of a pipe such as ``<(command)``; fails if it has more than ``most`` bytes."""
    try:
        with file.open("rb") as opened:
            return _decode(str(file), opened.read(most + 1), most)
    except OSError as error:
        raise Failed(f"{file}: {error.strerror}") from None


def _decode(source: str, data: bytes, most: int) -> str:
    if len(data) > most:
        raise Failed(f"{source}: expected at most {f'{most >> 20} MiB' if most >= 1 << 20 else f'{most >> 10} KiB'}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Failed(f"{source}: expected text in UTF-8") from None


def parse_object(source: str, text: str) -> dict[str, Any]:
    """Parse a JSON object; ``source`` names its origin in errors."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Failed(f"{source}: not JSON: {error}") from None
    except RecursionError:
        raise Failed(f"{source}: nested too deeply") from None
    if not isinstance(found, dict):
        raise Failed(f"{source}: expected a JSON object")
    return found


def parse_permission_set(given: str) -> str | dict[str, Any]:
    """A permission set from an argument: the name of a level or a set, JSON, a .json file, or - for stdin."""
    if given == "-":
        return parse_object("stdin", read_stdin(MAX_SET_BYTES))
    if given.startswith("{"):
        return parse_object("the set", given)
    if not given.endswith(".json") and "/" not in given:
        return given
    return parse_object(given, read_text_file(Path(given), MAX_SET_BYTES))


def agent_fields(given: str, by_id: str = "agent_id", by_name: str = "name") -> dict[str, Any]:
    """The field that identifies an agent: its id if the argument is a number, else its name."""
    agent = parse_agent(given)
    return {by_id if isinstance(agent, int) else by_name: agent}


def parse_agent(given: str) -> int | str:
    """An agent's id if the argument is a number, else its name."""
    return parse_number(given) if given.isdecimal() else given


def parse_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Failed(f"{digits[:MAX_DIGITS]}…: expected a number of at most {MAX_DIGITS} digits, got {len(digits)}")
    return int(digits)


def print_error(line: str) -> None:
    """Print a line on stderr as :func:`wrap_error` has it, with control characters escaped."""
    click.echo(wrap_error(printable(line)), err=True)


def wrap_error(line: str) -> str:
    """A line for stderr, cut in its middle where it quotes a value of any length.

    On a terminal it is wrapped between words, of which none is broken, so that they can be copied.
    """
    line = cut_middle(line, MAX_ERROR_CHARS)
    if not sys.stderr.isatty():
        return line
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))


def printable(text: str) -> str:
    """Text for a terminal, with control characters escaped, and others of which nothing is seen."""
    if text.isprintable() and (text.isascii() or not UNSEEN.search(text)):
        return text
    return "".join(c if (c.isprintable() and not UNSEEN.match(c)) or c == "\t" else ascii(c)[1:-1] for c in text)


def plural(number: int, word: str) -> str:
    """``1 agent``, ``2 agents``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
