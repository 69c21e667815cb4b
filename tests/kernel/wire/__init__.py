"""Connections and frames."""
