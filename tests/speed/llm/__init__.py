"""Loads on one connection to a model, what stands between the two, and what comes of it."""
