"""Calls of the operator."""
