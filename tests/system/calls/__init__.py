"""Commands, files, state and guests."""
