"""Images that agents run in: the store in the state directory, and the import of archives into it."""
