"""Images that agents run in, with a kernel."""
