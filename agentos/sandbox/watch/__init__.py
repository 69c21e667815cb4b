"""Periodic checks of memory, processes and disk use where Linux enforces no limit by itself."""
