"""An agent that writes a program, tests it and repairs it, in a jail."""
