"""Networks of agents, and MCP."""
