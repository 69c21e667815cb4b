"""Records calls: what is chosen, queued and written, and what is kept of the files that commands change."""
