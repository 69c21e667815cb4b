"""A conversation that outlives the agent that holds it, and its kernel."""
