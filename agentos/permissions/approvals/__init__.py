"""Calls that wait for a person: the entries, their text, and the answers."""
