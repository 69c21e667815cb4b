"""Patterns of rules: paths, domains, commands, names."""
