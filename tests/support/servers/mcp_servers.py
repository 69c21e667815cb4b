"""Kernels with MCP servers: their configuration, agents that use the servers, and the operator who allows the tools."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.system.agents import as_agent, up

PROGRAMS = Path(__file__).parents[2] / "mcp"
EXAMPLE = f"""
[mcp.servers.example]
script = "{PROGRAMS}/example_server.py"
"""
PLAIN = f"""
[mcp.servers.plain]
script = "{PROGRAMS}/plain_server.py"
"""


def allow_tools(operator: AgentOSClient, server: str) -> None:
    """Start the operator's instance of a server, and allow all of its tools."""

    def listed() -> bool:
        reply = up(operator.tools(server))
        for one in operator.request(0x42, {})["pending"]:
            operator.request(0x43, {"id": one["id"], "allow": True})
        return bool(reply["tools"]) and not reply["missing"]

    until(listed, f"the tools of {server} are listed")


@contextlib.contextmanager
def using(kernel: Kernel, operator: AgentOSClient, name: str, *tools: str, **more: Any) -> Iterator[AgentOSClient]:
    """A connection of an agent that may call these tools; the agent is ended afterwards."""
    permissions = {"level": "sandboxed", "allow": {"tools": list(tools)}, **more}
    number = up(operator.spawn(name, command=["sleep", "1000"], permissions=permissions))["id"]
    try:
        with as_agent(kernel, number) as agent:
            yield agent
    finally:
        operator.kill(agent_id=number, grace=0)


def text_of(reply: dict[str, Any]) -> str:
    """The text of a result with one part."""
    [part] = up(reply)["content"]
    assert part["type"] == "text"
    return str(part["text"])


def names(client: AgentOSClient, prefix: str = "mcp.") -> list[str]:
    """The instances of servers that live."""
    return sorted(agent["name"] for agent in client.list_agents() if agent["name"].startswith(prefix))
