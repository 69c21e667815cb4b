"""Services of the kernel. They work on plain values and know no callers and no requests."""
