"""One life of an agent: its process, its output, its health and its end."""
