"""READ and WRITE on the host: path resolution, file access as another user."""
