"""A program of the OpenAI Agents SDK with tools that misbehave: run plainly, and as an agent."""
