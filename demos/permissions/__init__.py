"""What an agent may do and what not: ten attempts, each with its decision, the rule, and the entry that says so."""
