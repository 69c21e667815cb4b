"""Servers to test against."""
