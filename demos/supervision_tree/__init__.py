"""A tree of supervised agents: some are well, one falls and gets up ever more slowly, one is given up."""
