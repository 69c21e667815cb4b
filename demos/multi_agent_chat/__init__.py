"""Three specialists talk, each a process of its own; one crashes in the middle."""
