"""The dashboard: pages of the running kernel, served by the kernel's process; everything on them is a system call."""
