"""Programs that use the kernel as anybody could."""
