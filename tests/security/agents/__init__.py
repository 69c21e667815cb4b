"""Attacks on other agents."""
