"""A client of fastmcp: from a URL, a token and a command it prints our tools, and what the command prints."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.auth import BearerAuth


async def main(url: str, token: str, command: str) -> None:
    async with Client(url, auth=BearerAuth(token)) as client:
        tools = [tool.name for tool in await client.list_tools()]
        done = await client.call_tool("agentos_exec", {"command": command, "timeout": 0})
        print(json.dumps([tools, done.structured_content["stdout"]]), flush=True)


asyncio.run(main(*sys.argv[1:]))
