"""Values to JSON and back."""
