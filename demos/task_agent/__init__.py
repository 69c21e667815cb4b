"""A task by the agentic loop that is killed in the middle, resumes, and does nothing twice."""
