"""Measurements of starts and ends of agents."""
