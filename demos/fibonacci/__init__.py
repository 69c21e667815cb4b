"""A number by agents that spawn agents: what they report is compared with what the kernel has counted."""
