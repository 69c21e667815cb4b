"""Handlers of the calls about files and commands."""
