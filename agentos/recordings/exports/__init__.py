"""Recordings as files that are given to others."""
