"""Agents that wait for a time, a message or an event."""
