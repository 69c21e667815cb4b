"""How tests run: what they cost, and how far they are."""
