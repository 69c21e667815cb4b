"""Attacks from inside a sandbox."""
