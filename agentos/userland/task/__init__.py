"""Tasks of the command line: the directory that an agent works on, what is saved of it, and the task itself."""
