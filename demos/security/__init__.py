"""What an agent can do to the machine without a jail, and what it can do in one: the same program, side by side."""
