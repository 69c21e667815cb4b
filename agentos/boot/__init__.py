"""Constructs the kernel from a configuration, and runs it."""
