"""Four agents, three of which misbehave: what the kernel does about it, and what the fourth feels of it."""
