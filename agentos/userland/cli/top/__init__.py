"""Commands that show what goes on: top, metrics and traces."""
