"""What isolation a host can give and which isolation a sandbox has."""
