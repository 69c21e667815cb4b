"""The agentic loop in real agents."""
