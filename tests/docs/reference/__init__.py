"""Pages that list what the code has."""
