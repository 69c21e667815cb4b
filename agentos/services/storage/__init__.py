"""What the state directory holds, and its bound."""
