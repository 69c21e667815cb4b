"""The event log: what the kernel publishes, numbered, kept for a while, and read by many callers."""
