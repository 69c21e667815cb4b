"""What a configuration file says, and the only room that reads one."""
