"""Four agent processes solve five word problems: parser, reasoner, verifier, orchestrator."""
