"""Figures of what agents and the kernel use."""
