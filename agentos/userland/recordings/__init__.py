"""What the command line and the dashboard both say about recordings."""
