"""What both clients share: their methods, and what these are made of."""
