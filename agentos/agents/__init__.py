"""Agents: the life cycle of one agent, the agent tree, and the registry of all agents."""
