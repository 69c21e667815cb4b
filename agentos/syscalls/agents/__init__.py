"""Handlers of the calls about agents."""
