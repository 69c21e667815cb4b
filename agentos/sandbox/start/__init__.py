"""Starts processes in sandboxes: the spawner, the zygote and jails that wait."""
