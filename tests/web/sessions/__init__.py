"""Links, sessions and proofs."""
