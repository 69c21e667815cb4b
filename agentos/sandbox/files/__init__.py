"""What of the host's files a sandbox shows."""
