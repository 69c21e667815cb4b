"""Calls that a person approves: what the person sees of a write and a command, and what becomes of the answers."""
