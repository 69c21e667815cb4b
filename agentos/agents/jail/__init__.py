"""The jail of an agent: layout, start, isolation report."""
