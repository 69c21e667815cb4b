"""Both versions of the protocol."""
