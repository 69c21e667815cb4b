"""An agent that uses a tool of an MCP server, and a server that changes what it says about the tool."""
