"""Permissions: rule sets, path and command patterns, levels, and the authorizer that decides on each call."""
