"""An agent that is killed, then its kernel: both times it goes on where it was."""
