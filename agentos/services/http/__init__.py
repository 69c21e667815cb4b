"""Outgoing HTTP and tunnels: what a URL names, which addresses are refused, and the one way to open a connection."""
