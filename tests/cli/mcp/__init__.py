"""Commands about MCP."""
