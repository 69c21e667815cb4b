"""Attacks on the kernel's process and its channels."""
