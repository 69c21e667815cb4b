"""``agentos state``: the global keys that agents and people share."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import click

from agentos.userland.cli import completed
from agentos.userland.cli.columns import cut_middle, table_width
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    kernel_options,
    plural,
    print_json_line,
    print_lines,
    print_result,
    printable,
)
from agentos_sdk import AgentOSClient
from agentos_sdk.encoding.quantities import seconds

from .events import PAGE, POLL_SECONDS
from .messages import parse_message


@click.group()
def state() -> None:
    """Read and change the state that agents share.

    These are the keys of scope global. An agent's own keys are seen by no other agent;
    get and ls show them with --agent.
    """


agent_option = click.option(
    "--agent",
    metavar="NAME",
    shell_complete=completed.agents,
    help="The keys of this agent alone; of one that ended: boss/worker.",
)


@state.command()
@click.argument("key", shell_complete=completed.state_keys)
@agent_option
@kernel_options
def get(key: str, agent: str | None, socket_path: str | None, as_json: bool) -> None:
    """Print the value of KEY, as JSON.

    --json prints the whole reply, with its version.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.fetch(key, scope_of(agent), agent))
    if not reply["exists"]:
        raise missing_key(key)
    print_lines([json.dumps(reply["value"], ensure_ascii=False)], reply, as_json)


@state.command("set")
@click.argument("key", shell_complete=completed.state_keys)
@click.argument("value")
@click.option("--ttl", metavar="TIME", help="How long the key exists, such as 90s or 1h.")
@click.option("--if-version", type=int, metavar="N", help="Only if it has this version; 0: if there is no such key.")
@kernel_options
def set_value(
    key: str, value: str, ttl: str | None, if_version: int | None, socket_path: str | None, as_json: bool
) -> None:
    """Store VALUE under KEY.

    VALUE is JSON, or else plain text.
    """
    lasts = None if ttl is None else seconds(ttl)
    if ttl is not None and lasts is None:
        raise click.BadParameter(f"expected a duration such as 90s or 1h, got {ttl!r}", param_hint="--ttl")
    with kernel(socket_path) as client:
        reply = check_reply(client.store(key, parse_message(value), "global", lasts, if_version))
    print_result(f"{key} has the version {reply['version']}", reply, as_json)


@state.command()
@click.argument("prefix", default="")
@agent_option
@kernel_options
def ls(prefix: str, agent: str | None, socket_path: str | None, as_json: bool) -> None:
    """List the keys, or those that begin with PREFIX."""
    with kernel(socket_path) as client:
        keys = list(list_keys(client, prefix, agent))
        if agent is not None and not keys:
            require_owner(client, agent)
    print_lines(keys, keys, as_json)


@state.command()
@click.argument("key", shell_complete=completed.state_keys)
@kernel_options
def rm(key: str, socket_path: str | None, as_json: bool) -> None:
    """Delete KEY."""
    with kernel(socket_path) as client:
        reply = check_reply(client.delete(key, "global"))
    if not reply["deleted"]:
        raise missing_key(key)
    print_result(f"{key} is deleted", reply, as_json)


@state.command()
@click.argument("prefix", default="")
@kernel_options
def watch(prefix: str, socket_path: str | None, as_json: bool) -> None:
    """Show each change of a key, or of those that begin with PREFIX.

    The value is the present one: if a key changes faster than it can be read, some values are left out. --json prints
    the events, which have no value.
    """
    try:
        with kernel(socket_path) as client:
            check_reply(client.subscribe(["STATE_CHANGED"], prefix=prefix))
            while True:
                page = check_reply(client.poll_events(PAGE, POLL_SECONDS))
                if page["missed"] and not as_json:
                    click.secho(f"({plural(page['missed'], 'change')} more)", fg="bright_black", err=True)
                for event in page["events"]:
                    if event["data"]["scope"] == "global":
                        print_json_line(event) if as_json else print_change(client, event)
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)


def print_change(client: AgentOSClient, event: Mapping[str, Any]) -> None:
    key, version = event["data"]["key"], event["data"]["version"]
    found = None if event["data"]["deleted"] else check_reply(client.fetch(key, "global"))
    if found is None:
        text = "is deleted"
    elif not found["exists"] or found["version"] != version:
        text = f"had the version {version}"
    else:
        text = f"= {json.dumps(found['value'], ensure_ascii=False)}"
    line = f"{time.strftime('%H:%M:%S', time.localtime(event['at']))} {printable(key)} {printable(text)}"
    click.echo(cut_middle(line, table_width()) if sys.stdout.isatty() else line)


def scope_of(agent: str | None) -> Literal["agent", "global"]:
    return "global" if agent is None else "agent"


def list_keys(client: AgentOSClient, prefix: str, agent: str | None) -> Iterator[str]:
    after: str | None = ""
    while after is not None:
        page = check_reply(client.keys(prefix, scope_of(agent), after=after, agent=agent))
        yield from page["keys"]
        after = page["next"]


def require_owner(client: AgentOSClient, agent: str) -> None:
    """Fail if there is no such agent, and no key of one that ended."""
    names = {each["name"] for each in client.list_agents(all=True)}
    if agent not in names and not check_reply(client.keys("", "agent", limit=1, agent=agent))["keys"]:
        raise Failed(f"no agent is called {agent!r}", {"code": "not_found"})


def missing_key(key: str) -> Failed:
    return Failed(f"there is no key {key!r}", {"code": "not_found"})
