"""The queue for the model: which question is next, and what it reserves."""
