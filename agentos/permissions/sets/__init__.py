"""Permission sets in files."""
