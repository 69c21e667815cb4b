"""A simulated queue for the model."""
