"""Commands that start, check and describe kernels."""
