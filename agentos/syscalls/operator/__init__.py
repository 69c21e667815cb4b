"""Handlers of the calls about the kernel and its permissions."""
