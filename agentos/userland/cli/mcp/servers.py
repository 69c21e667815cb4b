"""``agentos mcp add``, ``servers``, ``unpin`` and ``remove``: the MCP servers whose tools agents may use."""

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from agentos.userland.cli.agents.spawn import parse_limits, parse_pairs
from agentos.userland.cli.approvals.approvals import line_rows, print_styled
from agentos.userland.cli.columns import row_width
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    kernel_options,
    plural,
    print_json,
    print_lines,
    print_result,
    print_table,
    printable,
    read_text_file,
    socket_path,
)
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.project import list_kernels

from .table import add_table, list_servers, remove_table, replace_text

HEADER: Final = ["NAME", "SERVER", "SHARE", "NETWORK", "TOOLS", "WITHHELD"]
PYTHON: Final = re.compile(r"python[0-9.]*")
ASK_SECONDS: Final = 30.0  # that the kernel has to queue the question about listed tools


@click.command()
@click.argument("name")
@click.argument("command", nargs=-1, metavar="[-- COMMAND [ARGS]...]")
@click.option("--url", metavar="URL", help="A server that is reached over HTTP, in place of COMMAND.")
@click.option(
    "-e",
    "--env",
    "env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable; env:NAME is a secret's.",
)
@click.option("--code", metavar="DIR", help="A directory that COMMAND needs: the server sees all of it, as /agent.")
@click.option(
    "--workspace", metavar="DIR", help="A directory that its tools work on, as /workspace; they may write there."
)
@click.option(
    "--network",
    type=click.Choice(["none", "filtered", "host"]),
    help="Network of its jail. Default: none.",
)
@click.option("--domain", "domains", multiple=True, metavar="HOST", help="A host that it may reach; repeatable.")
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME", help="One of [[http.secrets]], for --url; repeatable."
)
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="As of `agentos spawn`, such as memory=256M."
)
@click.option("--share", type=click.Choice(["agent", "all"]), help="An instance for each agent (default), or one.")
@click.option("--yes", is_flag=True, help="Allow its tools as they are now without asking.")
@kernel_options
def add(
    name: str,
    command: Sequence[str],
    url: str | None,
    env: tuple[str, ...],
    code: str | None,
    workspace: str | None,
    network: str | None,
    domains: Sequence[str],
    secrets: Sequence[str],
    limits: tuple[str, ...],
    share: str | None,
    yes: bool,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Give agents the tools of an MCP server.

    Its table is added to the configuration file, and its tools are shown.

    What you allow then is pinned: a tool that is new or has changed later is withheld until you allow it. A COMMAND
    that begins with npx, uvx or pipx is installed once, and runs without network from then on.
    """
    check_usage(name, command, url, network, domains, secrets)
    check_directories(command, code, workspace)
    permissions = make_permissions(url, domains, secrets)
    fields: dict[str, object] = {"url": url, **find_program(command), "env": parse_pairs("--env", env)}
    directories = {"code": code, "workspace": workspace}
    fields |= {key: os.path.abspath(given) for key, given in directories.items() if given is not None}
    fields |= {"network": network or ("filtered" if domains and url is None else None)}
    fields |= {"limits": parse_limits(limits), "share": share, "permissions": permissions}
    with kernel(socket_path) as client:
        file, state = find_places(client, socket_path)
        text = read_text_file(file)
        if name in list_servers(file, text):
            raise Failed(f"{file}: there is an MCP server {name} already: `agentos mcp remove {name}` removes it")
        place = state / "mcp" / "packages" / name
        installed = install_package(client, name, command, place, as_json) if command else {}
        kept = {key: value for key, value in {**fields, **installed}.items() if value}
        with undone_on_failure(place):
            apply_text(client, file, text, new := add_table(text, name, kept))
        with undone_on_failure(place, lambda: apply_text(client, file, new, text)):
            list_tools(client, name)
        found = pin_tools(client, name, yes, as_json)
    if as_json:
        print_json({"success": True, "name": name, **found})


def check_usage(
    name: str,
    command: Sequence[str],
    url: str | None,
    network: str | None,
    domains: Sequence[str],
    secrets: Sequence[str],
) -> None:
    from agentos.mcp.settings import SERVER_NAME, SERVER_NAME_RULE

    if not SERVER_NAME.fullmatch(name):
        raise click.BadParameter(f"expected {SERVER_NAME_RULE}, got {name!r}", param_hint="NAME")
    if bool(command) == (url is not None):
        raise click.UsageError("expected either --url, or -- and the command that is the server")
    if url is not None and network is not None:
        raise click.UsageError("--network: a server at a URL has no jail: leave it out")
    if url is None and secrets:
        raise click.UsageError("--secret: the kernel adds it to requests of a server at a URL; for a command use -e")
    if domains and network not in (None, "filtered"):
        raise click.UsageError("--domain: only a filtered network has rules: leave --network out")


def check_directories(command: Sequence[str], code: str | None, workspace: str | None) -> None:
    from .packages import parse_package

    for option, given in (("--code", code), ("--workspace", workspace)):
        if given is not None and not command:
            raise click.UsageError(f"{option}: a server at a URL has no jail: leave it out")
    if code is not None and parse_package(command) is not None:
        raise click.UsageError("--code: a package is /agent itself; a directory for its tools is --workspace")


@contextlib.contextmanager
def undone_on_failure(installed: Path, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Where the block fails, remove what was installed, and call ``undo``."""
    try:
        yield
    except (Failed, AgentOSError):
        shutil.rmtree(installed, ignore_errors=True)
        undo()
        raise


def find_program(command: Sequence[str]) -> Mapping[str, object]:
    """The fields of the table that run this command; a Python script of the host's is mounted into the jail.

    It is run by the interpreter of the command if that is a path, as of a virtual environment; a name such as
    ``python3`` is the kernel's Python.
    """
    if len(command) > 1 and PYTHON.fullmatch(os.path.basename(command[0])) and os.path.isfile(command[1]):
        own = {"python": os.path.abspath(command[0])} if os.sep in command[0] else {}
        return {"script": os.path.abspath(command[1]), **own, "args": list(command[2:])}
    return {"command": list(command)}


def make_permissions(url: str | None, domains: Sequence[str], secrets: Sequence[str]) -> dict[str, object]:
    """The server's permission set: the hosts that it may reach."""
    hosts = list(domains)
    if url is not None:
        authority = re.fullmatch(r"https?://(?P<authority>[^/?#@]+)(?:[/?#].*)?", url)
        if authority is None:
            raise click.BadParameter("expected https://HOST/PATH, without a user and a password", param_hint="--url")
        hosts = [*dict.fromkeys([authority["authority"], *hosts])]
    found: dict[str, object] = {"level": "minimal", "allow": {"domains": hosts}} if hosts else {}
    return found | ({"secrets": list(secrets)} if secrets else {})


def find_places(client: AgentOSClient, given: str | None) -> tuple[Path, Path]:
    """The kernel's configuration file and its state directory."""
    config = check_reply(client.status())["config"]
    if config is None:
        raise Failed("the kernel runs without a configuration file: make one with `agentos init`, and start it anew")
    path = os.path.realpath(socket_path(given))
    states = [one.state_dir for one in list_kernels() if os.path.realpath(one.socket) == path]
    if not states:
        raise Failed(f"no kernel of this user has the socket {path}: run this as the kernel's user")
    return Path(config), Path(states[0])


def install_package(
    client: AgentOSClient, name: str, command: Sequence[str], place: Path, quiet: bool
) -> Mapping[str, object]:
    """Install what the command would fetch; returns the fields of the table that run it."""
    from .packages import install, parse_package

    package = parse_package(command)
    if package is None:
        return {}
    if place.exists():
        shutil.rmtree(place)  # of a server that was removed by hand
    click.echo(f"installing {package.spec} into {place}", err=quiet)
    return {"command": install(client, name, package, place), "code": str(place)}


def apply_text(client: AgentOSClient, file: Path, old: str, new: str) -> None:
    """Write the configuration file and have the kernel read it; a file with mistakes is put back."""
    replace_text(file, new)
    try:
        check_reply(client.reload())
    except Exception:
        replace_text(file, old)
        raise


# -- Pinning -----------------------------------------------------------------------------------------------------------


def pin_tools(client: AgentOSClient, name: str, yes: bool, quiet: bool) -> dict[str, list[str]]:
    """Show the server's tools and have them decided; returns which may be used and which may not."""
    tried = set[int]()
    while True:
        reply = list_tools(client, name)
        allowed, withheld = [one["name"] for one in reply["tools"]], [one["tool"] for one in reply["missing"]]
        if not any("waits for" in one["error"] for one in reply["missing"]):
            break
        request = wait_for_question(client, name)
        if request["id"] in tried:
            break
        tried.add(request["id"])
        decide(client, name, request, yes, quiet)
        wait_until_decided(client, request["id"])
    if not quiet:
        more = f", {len(withheld)} withheld" if withheld else ""
        click.echo(f"{name}: {plural(len(allowed), 'tool')} pinned{more}")
    return {"tools": allowed, "withheld": withheld}


def list_tools(client: AgentOSClient, name: str) -> Mapping[str, Any]:
    """The reply of TOOLS for this server. Raises ``Failed`` where it can't be used at all."""
    reply: Mapping[str, Any] = check_reply(client.tools(name))
    failed = [one["error"] for one in reply["missing"] if one["tool"] is None]
    if failed:
        output = f"`agentos logs mcp.{name}.operator` has its output"
        raise Failed(f"{name} isn't added, for its tools can't be listed: {failed[0]}; {output}")
    return reply


def wait_for_question(client: AgentOSClient, name: str) -> Mapping[str, Any]:
    """The approval about the server's tools, which the kernel queues once they were listed."""
    deadline = time.monotonic() + ASK_SECONDS
    while time.monotonic() < deadline:
        for request in check_reply(client.approvals())["pending"]:
            if (request["agent"], request["call"], request["caller_present"]) == (f"mcp.{name}", "TOOLS", True):
                found: Mapping[str, Any] = request
                return found
        time.sleep(0.05)
    raise Failed(f"{name} is added, but the kernel asks nothing about its tools: see `agentos approvals`")


def wait_until_decided(client: AgentOSClient, number: int) -> None:
    """Return when the decision is on disk: the answers have it, or the tools are no longer asked about."""
    deadline = time.monotonic() + ASK_SECONDS
    while time.monotonic() < deadline:
        if any(one["id"] == number for one in check_reply(client.get_permissions())["answers"]):
            return
        time.sleep(0.05)
    raise Failed(f"the kernel hasn't kept the decision about approval {number}: see `agentos logs kernel`")


def decide(client: AgentOSClient, name: str, request: Mapping[str, Any], yes: bool, quiet: bool) -> None:
    """Show what the approval is about, and give the operator's answer."""
    lines = (row for line in request["lines"] for row in line_rows(line, row_width()))
    if not quiet:
        print_styled(lines)
    if not yes and (quiet or not sys.stdin.isatty()):
        later = f"`agentos approvals {request['id']}` shows them, `agentos approve {request['id']}` allows them"
        raise Failed(f"{name} is added, and its tools are withheld: {later}; --yes allows them at once")
    allow = yes or click.confirm(f"Allow agents these tools of {name}, exactly as they are?", default=False)
    check_reply(client.decide(request["id"], allow, digest=request["digest"]))


# -- The others --------------------------------------------------------------------------------------------------------


@click.command()
@kernel_options
def servers(socket_path: str | None, as_json: bool) -> None:
    """List the configured MCP servers.

    Those that don't run are started, to show how many of their tools may be used.
    """
    with kernel(socket_path) as client:
        file, _ = find_places(client, socket_path)
        tables = list_servers(file, read_text_file(file))
        reply = check_reply(client.tools())
    rows = [describe_server(name, table, reply) for name, table in tables.items()]
    if as_json:
        print_json([dict(zip(map(str.lower, HEADER), row, strict=True)) for row in rows])
        return
    print_table(rows, HEADER, ("NAME", "SERVER"), "no MCP server is configured: `agentos mcp add` adds one")
    print_lines(describe_failures(reply))


def describe_server(name: str, table: Mapping[str, Any], reply: Mapping[str, Any]) -> list[str]:
    where = table.get("url") or table.get("script") or " ".join(map(str, table.get("command", ())))
    tools = sum(one["server"] == name for one in reply["tools"])
    withheld = sum(one["server"] == name and one["tool"] is not None for one in reply["missing"])
    network = "-" if "url" in table else str(table.get("network", "none"))
    return [name, printable(str(where)), str(table.get("share", "agent")), network, str(tools), str(withheld)]


def describe_failures(reply: Mapping[str, Any]) -> Iterator[str]:
    for one in reply["missing"]:
        if one["tool"] is None:
            yield f"{one['server']}: {one['error']}"


@click.command()
@click.argument("name")
@kernel_options
def unpin(name: str, socket_path: str | None, as_json: bool) -> None:
    """Revoke what was decided about the tools of NAME.

    All are withheld until you decide about them again.
    """
    with kernel(socket_path) as client:
        answers = check_reply(client.get_permissions())["answers"]
        numbers = {one["id"] for one in answers if (one["agent"], one["call"].upper()) == (f"mcp.{name}", "TOOLS")}
        if not numbers:
            raise Failed(f"nothing was decided about tools of an MCP server {name}", {"code": "not_found"})
        for number in sorted(numbers):
            reply = check_reply(client.decide(number, False, forget=True))
    print_result(f"{name}: its tools are withheld until they are allowed again", reply, as_json)


@click.command()
@click.argument("name")
@kernel_options
def remove(name: str, socket_path: str | None, as_json: bool) -> None:
    """Remove an MCP server.

    Its table goes, what was installed for it, and what was decided about its tools.
    """
    with kernel(socket_path) as client:
        file, state = find_places(client, socket_path)
        text = read_text_file(file)
        if name not in list_servers(file, text):
            raise Failed(f"{file}: there is no MCP server {name}", {"code": "not_found"})
        without = remove_table(text, name)
        if without is None:
            raise Failed(f"{file}: [mcp.servers.{name}] isn't a table of its own: remove it by hand")
        apply_text(client, file, text, without)
        shutil.rmtree(state / "mcp" / "packages" / name, ignore_errors=True)
    print_result(f"{name} is removed", {"success": True, "name": name}, as_json)
