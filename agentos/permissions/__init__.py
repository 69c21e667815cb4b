"""Permissions, the policy of calls: rule sets, path and command patterns, levels, and the authorizer that decides."""
