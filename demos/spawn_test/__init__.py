"""The life of an agent from outside: spawn, list, logs, pause, resume, kill; and what can go wrong."""
