"""What the kernel tells monitoring programs: metrics for Prometheus."""
