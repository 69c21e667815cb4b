"""One life, the tree of lives, and the registry of all that were."""
