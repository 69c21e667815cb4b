"""Attacks by files."""
