"""The tree of supervisors."""
