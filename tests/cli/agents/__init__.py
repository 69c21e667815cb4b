"""Commands about agents."""
