"""A reviewer that may read a file and nothing else: what it finds, and what it can't do."""
