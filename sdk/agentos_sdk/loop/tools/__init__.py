"""The tools that the agentic loop gives a model."""
