"""Workspaces of agents and what is copied into them."""
