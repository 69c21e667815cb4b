"""Research in pages of a server, by rules about domains; the answer cites what was read."""
