"""The connection to one MCP server."""
