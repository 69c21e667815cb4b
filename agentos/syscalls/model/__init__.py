"""Handlers of the calls about the model and its tools."""
