"""Attacks over networks and MCP."""
