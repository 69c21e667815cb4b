"""The line to the model."""
