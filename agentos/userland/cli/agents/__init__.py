"""Commands about agents, their output and what they exchange."""
