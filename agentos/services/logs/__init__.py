"""Logs on disk: the output of agents and the kernel's own log, in files of one JSON object per line."""
