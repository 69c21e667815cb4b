"""An MCP server with one tool, by the official SDK."""

import trio
from mcp.server.mcpserver import MCPServer

DESCRIPTION = "Add a note."

server = MCPServer("notes")
notes: list[str] = []


@server.tool(description=DESCRIPTION)
def add(text: str) -> str:
    notes.append(text)
    return f"noted: {text}"


trio.run(server.run_stdio_async)
