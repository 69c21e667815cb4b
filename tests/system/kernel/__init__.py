"""The kernel itself: its ends, its limits and what it leaves."""
