"""Identities of callers, their rights and their tables."""
