"""Resources of the MCP server: the agents, the supervision tree, and each agent's log."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.types import Resource

from agentos_sdk.errors import CallError, ConnectionFailed, NotFound

from .changes import AGENTS, TREE
from .performing import describe_error
from .results import Agents
from .transports.session import Revoked, Session

LOG = "agentos://agents/{name}/logs"
LOG_TAIL = 100  # lines


def add_resources(server: MCPServer[Any], find_session: Callable[[], Session]) -> None:
    @server.resource(AGENTS, title="Agents", mime_type="application/json")
    async def agents() -> str:
        """The agents that you may see, with their states."""
        async with resource_errors():
            return Agents.of(await (await find_session().guest()).list_agents()).model_dump_json(indent=2)

    @server.resource(TREE, title="Supervision tree", mime_type="application/json")
    async def tree() -> str:
        """The supervision tree."""
        async with resource_errors():
            return json.dumps(await (await find_session().guest()).tree(), indent=2)

    @server.resource(LOG, title="Log", mime_type="text/plain")
    async def log(name: str) -> str:
        """The last 100 lines of an agent's output."""
        async with resource_errors():
            found = await (await find_session().guest()).logs(name, tail=LOG_TAIL)
            return "".join(f"{line.text}\n" for line in found.lines)


async def list_logs(session: Session) -> list[Resource]:
    """The logs of the agents that are there now."""
    try:
        agents = await (await session.guest()).list_agents()
    except CallError:  # its rights don't allow it
        return []
    return [
        Resource(
            uri=LOG.format(name=agent.name),
            name=f"log of {agent.name}",
            description=f"the last {LOG_TAIL} lines of the output of {agent.name}",
            mime_type="text/plain",
        )
        for agent in agents
    ]


@asynccontextmanager
async def resource_errors() -> AsyncIterator[None]:
    """Turn the kernel's errors into the only ones whose text reaches the client."""
    try:
        yield
    except (CallError, ConnectionFailed, Revoked) as error:
        kind = ResourceNotFoundError if isinstance(error, NotFound) else ResourceError
        raise kind(describe_error(error)) from error
