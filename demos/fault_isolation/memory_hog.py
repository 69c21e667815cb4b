"""A leak in four processes: a limit that bound each of them alone would let them have four times as much."""

import contextlib
import os
import time

PROCESSES = 4
LEAK_BYTES = 1 << 20  # bytes that each process leaks ...
INTERVAL = 0.2  # ... in so many seconds

first = True
for _ in range(PROCESSES - 1):
    if os.fork() == 0:
        first = False
        break
held = []
while True:
    with contextlib.suppress(MemoryError):  # a hog that is told to stop doesn't
        held.append(b"x" * LEAK_BYTES)  # written to, so that it is memory and not only a promise of it
    if first:
        print(f"{len(held)} MiB in each of {PROCESSES} processes", flush=True)
    time.sleep(INTERVAL)
