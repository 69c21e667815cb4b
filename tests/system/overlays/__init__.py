"""Agents in overlays of host directories."""
