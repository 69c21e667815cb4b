"""Connections: sockets, frames and replies."""
