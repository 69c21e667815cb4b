"""Beats every 50 ms, and prints by how many milliseconds each beat was late."""

import itertools
import time

INTERVAL = 0.05  # seconds

due = time.monotonic()
for number in itertools.count(1):
    due += INTERVAL
    time.sleep(max(0.0, due - time.monotonic()))
    print(f"beat {number} late by {(time.monotonic() - due) * 1000:.3f} ms", flush=True)
