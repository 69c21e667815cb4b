"""Commands about permissions."""
