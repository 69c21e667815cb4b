"""State of agents: values by space and key in the database."""
