"""The attacker: what runs inside an agent, with the standard library alone."""
