"""Starts, restarts and ends."""
