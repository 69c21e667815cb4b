"""Filters in the kernel: seccomp and Landlock."""
