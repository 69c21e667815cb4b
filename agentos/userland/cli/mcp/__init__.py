"""Commands about MCP: clients, servers and their tools."""
