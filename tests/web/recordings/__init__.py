"""Recordings in the dashboard."""
