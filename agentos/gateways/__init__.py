"""Other protocols that lead to the same calls."""
