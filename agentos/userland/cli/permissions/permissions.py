"""``agentos permissions``: shows, changes and explains the permissions of a level or an agent."""

import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.agents.inspect import EFFECTS, format_limit, format_size, is_restrictive
from agentos.userland.cli.columns import text_width
from agentos.userland.cli.common import (
    MAX_SET_BYTES,
    Failed,
    agent_fields,
    check_reply,
    default_config,
    json_option,
    kernel,
    kernel_options,
    parse_agent,
    parse_object,
    parse_permission_set,
    print_json,
    print_lines,
    print_result,
    read_text_file,
)
from agentos.userland.cli.main import CONFIG
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.encoding.quantities import duration
from agentos_sdk.errors import ConnectionFailed
from agentos_sdk.opcodes import Op
from agentos_sdk.project import find_project, is_config

from .answers import answer_lines, forget
from .suggest import suggest

DENIALS = "denials"
QUOTAS = ("tokens", "calls", "money", "http_requests", "http_bytes")
KIND_WIDTH, MAX_KIND_WIDTH = 8, 11  # length of the longest kind of rules but those of the state, and of all
AGENT_CALLS = ("KILL", "WAIT", "PAUSE", "RESUME", "LOGS", "INSPECT")
EXPECTED = {
    **dict.fromkeys(("READ", "WRITE"), "a path"),
    "EXEC": "a command",
    "HTTP": "a URL, METHOD URL, or CONNECT HOST:PORT",
    "SEND": "a name",
    **dict.fromkeys(AGENT_CALLS, "a name or an id"),
}


@click.group()
def permissions() -> None:
    """Show, change and explain what an agent may do."""


@permissions.command()
@click.argument("name", metavar="LEVEL|SET")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Where SET stands; default: agentos.toml.")
@json_option
def show(name: str, file: Path | None, as_json: bool) -> None:
    """Show the rules of a level or a set.

    A SET stands in a configuration file; `denials` are those that hold for every caller; viewer,
    viewer-with-contents and approver are what links to the dashboard may do. Needs no kernel.
    """
    from agentos.permissions.levels import LEVELS
    from agentos.permissions.link_sets import LINK_SETS
    from agentos.permissions.sets.files import describe_whole_set

    known = dict(LEVELS)
    has_config = file is not None or default_config(CONFIG)
    if name not in (*known, DENIALS) and has_config:
        known |= configured_sets(file or CONFIG)
    known = {**LINK_SETS, **known}
    if name not in (*known, DENIALS):
        where = "" if has_config else f"; there is no {CONFIG} here: say where with --config"
        raise Failed(f"no level or permission set is called {name!r}{suggest_name(name, [*known, DENIALS])}{where}")
    given = default_denials() if name == DENIALS else describe_whole_set(known[name])
    if as_json:
        print_json(given)
    elif name == DENIALS:
        for what, of_what in given.items():
            print_lines(section_lines(what, of_what))
    else:
        print_lines(set_lines(given))
        click.echo(f"denied to every caller: see `agentos permissions show {DENIALS}`")


def default_denials() -> dict[str, dict[str, list[str]]]:
    """The default denials: paths by their content, commands by their effect."""
    from agentos.permissions.patterns.secret_paths import GROUPS
    from agentos.shell.dangerous import ALWAYS_DENIED, CHECKS

    commands: dict[str, list[str]] = {}
    for name, what in ALWAYS_DENIED.items():
        commands.setdefault(what, []).append(name)
    commands["where they destroy data or change permissions"] = list(CHECKS)
    return {"read, write": {group: list(texts) for group, texts in GROUPS.items()}, "commands": commands}


def configured_sets(file: Path) -> Mapping[str, Any]:
    """The permission sets in a configuration file."""
    from agentos.config.load import ConfigError, load

    try:
        return load(file).permissions
    except ConfigError as error:
        raise Failed(str(error)) from None


def check_level(name: str) -> None:
    """Raise :class:`Failed` unless this is a level, or a set of the project's configuration file."""
    from agentos.permissions.levels import LEVELS

    known = [*LEVELS, *project_sets()]
    if name not in known:
        raise Failed(f"no level or permission set is called {name!r}{suggest_name(name, known)}")


def read_set_file(file: Path) -> dict[str, Any]:
    """A permission set in TOML, or JSON in a .json file, as it is written; raises :class:`Failed` for its mistakes."""
    from agentos.permissions.patterns.base import Names
    from agentos.permissions.sets.files import BadSet, read_set

    text = read_text_file(file, MAX_SET_BYTES)
    try:
        found = parse_object(str(file), text) if file.suffix == ".json" else tomllib.loads(text)
        names = Names(os.path.expanduser("~"), config=os.path.dirname(find_project().file))
        read_set(found, str(file), project_sets(), names)
    except ConnectionFailed as error:
        raise Failed(str(error)) from None
    except BadSet as error:
        raise Failed(f"{file}: {error}") from None
    except ValueError as error:  # TOML's
        raise Failed(f"{file}: {error}") from None
    except RecursionError:
        raise Failed(f"{file}: nested too deeply") from None
    return found


def project_sets() -> Mapping[str, Any]:
    """The permission sets of the project's configuration file, if there is one."""
    try:
        project = find_project()
    except ConnectionFailed as error:
        raise Failed(str(error)) from None
    return configured_sets(Path(project.file)) if is_config(project.file) else {}


@permissions.command()
@click.argument("agent", shell_complete=completed.agents)
@kernel_options
def get(agent: str, socket_path: str | None, as_json: bool) -> None:
    """Show what an agent may do.

    Below its own set are the sets that limit it: those of its ancestors. Last come the answers that are remembered.
    """
    with kernel(socket_path) as client:
        found = check_reply(client.get_permissions(check_reply(client.inspect(**agent_fields(agent)))["id"]))
    print_lines(held_lines(found), found, as_json)


def with_base_calls(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A set without a level, with the calls that it includes by default."""
    from agentos.permissions.levels import BASE_RULES

    if "level" in given:
        return given
    allow = given.get("allow", {})
    calls = dict.fromkeys([*(rule.text for rule in BASE_RULES), *allow.get("calls", ())])
    return {**given, "allow": {"calls": None} | allow | {"calls": list(calls)}}


permissions.add_command(forget)
permissions.add_command(suggest)


@permissions.command("set")
@click.argument("agent", shell_complete=completed.agents)
@click.argument("given", metavar="LEVEL|SET|JSON|FILE.json|-")
@kernel_options
def change(agent: str, given: str, socket_path: str | None, as_json: bool) -> None:
    """Let an agent do something else.

    Give it a level or a set by name, or a set in JSON, also from a file or our standard input. It holds from the next
    call on, also for the agents that AGENT spawned.
    """
    with kernel(socket_path) as client:
        number = check_reply(client.inspect(**agent_fields(agent)))["id"]
        reply = check_reply(client.set_permissions(parse_permission_set(given), agent_id=number))
    print_result(f"{agent} has other permissions from now on", reply, as_json)


@permissions.command(context_settings={"ignore_unknown_options": True})
@click.argument("agent", shell_complete=completed.agents)
@click.argument("call")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@kernel_options
def explain(agent: str, call: str, args: tuple[str, ...], socket_path: str | None, as_json: bool) -> None:
    """Say what would be decided, and by which rule.

    Nothing is done: this is what would come of it if AGENT made CALL.

    ARGS are a path for READ and WRITE, a line or words for EXEC, a model for THINK, a name for SEND and the calls about
    agents; for HTTP a URL, with a method in front if it isn't GET, or CONNECT HOST:PORT for a tunnel through a filtered
    network; for any call, its request in JSON. Words that begin with a dash stand behind --.
    """
    caller = parse_agent(agent)
    with kernel(socket_path) as client:
        found = check_reply(client.explain(caller, call, request(call.upper(), args)))
    print_lines((f"{name:<8}  {found[name]}" for name in ("decision", "rule", "reason")), found, as_json)


def request(call: str, args: Sequence[str]) -> dict[str, Any]:
    """Build the request of a call from command line words."""
    if call not in Op.__members__:
        raise Failed(f"no call is named {call!r}{suggest_name(call, Op.__members__)}")
    if not args and call in EXPECTED:
        raise Failed(f"{call}: expected {EXPECTED[call]}")
    if not args:
        return {"prompt": "?"} if call == "THINK" else {}
    first = args[0]
    if first.startswith("{") and len(args) == 1:
        return parse_object("ARGS", first)
    if call == "HTTP":
        return http_request(" ".join(args))
    if call == "EXEC":
        return {"command": first if len(args) == 1 else list(args)}
    fields: dict[str, dict[str, Any]] = {
        "READ": {"path": first},
        "WRITE": {"path": first, "content": ""},
        "THINK": {"prompt": "?", "model": first},
        "SEND": {"to_name": first, "message": None},
        **dict.fromkeys(AGENT_CALLS, agent_fields(first, by_id="id")),
    }
    if call not in fields or len(args) > 1:
        raise Failed(f"{' '.join(args)}: expected the request of {call} in JSON, such as '{{}}'")
    return fields[call]


def http_request(text: str) -> dict[str, Any]:
    """The request for a URL, METHOD URL, a host, or CONNECT HOST:PORT."""
    method, _, where = text.rpartition(" ")
    url = where if "://" in where or method == "CONNECT" else f"https://{where}"
    return {"url": url, **({"method": method} if method else {})}


# -- For people --------------------------------------------------------------------------------------------------------


def held_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines of GET_PERMS's reply: a caller's own set, those that limit it, and the answers that are remembered."""
    given = found["permissions"]
    yield from named_set_lines(given)
    for bound in given["bounded_by"]:
        if is_restrictive(bound):
            yield f"and within {bound['name']}:"
            yield from named_set_lines(bound)
    yield from answer_lines(found.get("answers", ()))


def named_set_lines(given: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a set that holds the rules of its level without listing them."""
    for line in set_lines(with_base_calls(given)):
        hint = f": see `agentos permissions show {given['level']}`" if line == f"level {given.get('level')}" else ""
        yield line + hint


def set_lines(given: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a set: its rules by effect and kind, then limits, secrets and quotas."""
    if "level" in given:
        yield f"level {given['level']}"
    for effect in EFFECTS:
        if effect in given:
            yield from section_lines(effect, given[effect])
    if limits := given.get("spawn", {}).get("limits"):
        yield "spawned agents get at most"
        yield "  " + ", ".join(f"{name} {format_limit(name, value)}" for name, value in limits.items())
    if secrets := given.get("secrets"):
        yield f"secrets {', '.join(secrets)}"
    if quotas := given.get("quotas"):
        yield "quotas"
        yield from (f"  {format_quota(line)}" for line in quotas)


def section_lines(heading: str, rows: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A heading, and below it the patterns by kind."""
    room = text_width()
    yield heading
    width = max(KIND_WIDTH, *map(len, rows))
    broad = width > MAX_KIND_WIDTH
    for what, texts in rows.items():
        begin = f"  {what}" if broad else f"  {what:<{width}}  "
        if broad:
            yield begin
        indent = " " * ((KIND_WIDTH if broad else width) + 4)
        words = [f"'{text}'" if " " in text else text for text in texts]
        lines = textwrap.wrap("  ".join(words), room - len(indent), break_long_words=False, break_on_hyphens=False)
        for index, line in enumerate(lines):
            yield (begin if index == 0 and not broad else indent) + line


def format_quota(line: Mapping[str, Any]) -> str:
    amounts = ", ".join(f"{format_amount(what, line[what])} {what}" for what in QUOTAS if what in line)
    return f"{amounts} per {duration(line['per'])}"


def format_amount(what: str, amount: float) -> str:
    return format_size(int(amount)) if what == "http_bytes" else f"{amount:.10g}"
