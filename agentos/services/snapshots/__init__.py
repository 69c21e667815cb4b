"""Overlays of host directories: where layers lie, what has changed in them, and making that in the directory."""
