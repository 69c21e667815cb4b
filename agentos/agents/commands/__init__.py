"""EXEC: running commands and collecting their output."""
