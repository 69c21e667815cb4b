"""Attacks on this project's own sandboxes: the attacker inside, and the harness outside that sets up and verifies."""
