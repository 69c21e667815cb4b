"""MCP servers whose tools agents may use."""
