"""Every call as a pair of types: what is asked and what is answered."""
