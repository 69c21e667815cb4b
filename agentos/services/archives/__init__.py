"""Archives of agents: their format, and what an import stages, moves into place and undoes."""
