"""Configuration: the only package that reads configuration files."""
