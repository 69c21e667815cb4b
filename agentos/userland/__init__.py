"""Programs that use the kernel through its public socket, such as the command line."""
