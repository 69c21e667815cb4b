"""How fast the kernel is, beside the least that a server could do: ``python -m tests.speed.bench``."""
