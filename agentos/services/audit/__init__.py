"""The audit log: a hash chain of entries in SQLite."""
