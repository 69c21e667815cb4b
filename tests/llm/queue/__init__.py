"""The queue."""
