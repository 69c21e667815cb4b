"""What AgentOS does, shown: each demo is one command, needs no network, and says what to notice."""
