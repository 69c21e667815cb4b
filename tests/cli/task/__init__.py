"""Commands about tasks, files and the model."""
