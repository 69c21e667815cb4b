"""When children are restarted."""
