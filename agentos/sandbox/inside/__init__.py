"""Code that runs in the zygote and in new processes. Standard library only, and no secrets: children inherit a copy."""
