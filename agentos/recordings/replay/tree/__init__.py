"""Trees of agents: recorded lives that are lived again together."""
