"""Agents that wait: started by a time, a message or an event."""
