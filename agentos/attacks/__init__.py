"""The project's own attacks on its sandboxes: an attacker inside, and whoever plants and verifies outside."""
