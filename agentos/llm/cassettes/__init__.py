"""Cassettes: recorded answers of models, from which a test gets the same answers again without a vendor."""
