"""The dashboard: pages of the running kernel, served by its process; what they do are system calls."""
