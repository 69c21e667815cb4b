"""The tables of the configuration file, one file each."""
