"""The agentic loop itself: its steps, its history and its budget."""
