"""The other side: what a process does to itself to become a sandboxed program. Standard library only."""
