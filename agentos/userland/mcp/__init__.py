"""AgentOS as an MCP server: programs such as Claude Desktop act through it as guests of the kernel."""
