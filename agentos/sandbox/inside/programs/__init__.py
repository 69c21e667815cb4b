"""Runs the agent's program, last of all steps."""
