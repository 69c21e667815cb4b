"""How processes start and end in sandboxes."""
