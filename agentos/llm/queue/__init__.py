"""The queue for the model: who is next, and what a question reserves."""
