"""Commands that copy files into and out of agents."""
