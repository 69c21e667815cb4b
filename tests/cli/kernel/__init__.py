"""Commands that start and check kernels."""
