"""The tree of supervisors: declared agents, reloads, starts and stops."""
