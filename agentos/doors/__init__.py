"""Endpoints for programs that don't speak the kernel's own protocol."""
