"""The tables of the file."""
