"""A program of the OpenAI Agents SDK whose tool misbehaves: run plainly, and as an agent."""
