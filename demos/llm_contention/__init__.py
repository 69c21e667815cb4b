"""Many agents and one model: the kernel's fair line to it, beside direct access and a plain queue."""
