"""HTTP proxy, DNS stub and port listeners of an agent with a filtered network."""
