"""``agentos tools``: the tools of MCP servers, and what an agent may do with them."""

from collections.abc import Mapping
from typing import Any

import click

from agentos.userland.cli.common import (
    agent_fields,
    check_reply,
    kernel,
    kernel_options,
    print_json,
    print_table,
    printable,
)
from agentos_sdk import AgentOSClient

WORDS = {"allow": "allowed", "ask": "asks a person", "deny": "denied"}


@click.command()
@click.argument("server", required=False)
@click.option("--as", "agent", metavar="AGENT", help="Say of each tool what the rules of AGENT decide.")
@kernel_options
def tools(server: str | None, agent: str | None, as_json: bool, socket_path: str | None) -> None:
    """List the tools of MCP servers, or of one SERVER.

    A server that doesn't run yet is started. Descriptions are the servers' own words.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.tools(server))
        decisions = explain(client, agent, reply["tools"]) if agent is not None else None
    if as_json:
        print_json({**reply, "decisions": decisions} if decisions is not None else reply)
        return
    header = ["TOOL", *(["RULES"] if decisions is not None else []), "DESCRIPTION"]
    rows = [
        [tool["name"], *([WORDS[decisions[tool["name"]]]] if decisions is not None else []), first_line(tool)]
        for tool in reply["tools"]
    ]
    if rows:
        print_table(rows, header)
    for one in reply["missing"]:
        click.echo(printable(f"{one['tool'] or one['server']}: {one['error']}"), err=True)
    if not rows and not reply["missing"]:
        click.echo("no tools: `agentos mcp add` adds an MCP server")


def explain(client: AgentOSClient, agent: str, found: list[dict[str, Any]]) -> Mapping[str, str]:
    """What the rules of an agent decide about each tool."""
    number = check_reply(client.inspect(**agent_fields(agent)))["id"]
    return {
        tool["name"]: check_reply(client.explain(number, "TOOL_CALL", {"tool": tool["name"]}))["decision"]
        for tool in found
    }


def first_line(tool: Mapping[str, Any]) -> str:
    """The beginning of a description, in one line."""
    text = tool["description"].strip().partition("\n")[0]
    return text if len(text) <= 80 else f"{text[:79]}…"
