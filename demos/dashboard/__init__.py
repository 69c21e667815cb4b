"""A lively tree to look at in the dashboard."""
