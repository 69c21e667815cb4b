"""Uses more and more memory, nearly as much as it may, and then starts over."""

import os
import time

held: list[bytes] = []
for number in range(100_000):
    held.append(os.urandom(4 << 20))  # written to, or it would take no memory
    if len(held) > 56:
        held.clear()
    print(f"indexed {number * 40} files", flush=True)
    time.sleep(1)
