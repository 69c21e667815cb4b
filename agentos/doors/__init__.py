"""Doors for who doesn't speak our protocol."""
