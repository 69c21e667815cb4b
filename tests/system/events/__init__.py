"""Events, logs, metrics and traces."""
