"""The attacker: code that runs inside an agent, with the standard library only."""
