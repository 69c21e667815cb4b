"""Commands about the model: questions and usage."""
