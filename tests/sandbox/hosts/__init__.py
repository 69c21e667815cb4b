"""Hosts that lack something."""
