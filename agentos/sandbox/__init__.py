"""Running programs apart from the host, usable without the kernel."""
