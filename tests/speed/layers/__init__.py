"""What overlays, snapshots, forks and images cost."""
