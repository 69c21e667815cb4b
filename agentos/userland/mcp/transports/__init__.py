"""How clients of MCP connect: stdio and HTTP."""
