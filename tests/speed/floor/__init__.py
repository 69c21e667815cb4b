"""Programs in C that are the floor of the measurements."""
