"""Uses more and more memory, and then starts over."""

import time

held: list[bytes] = []
for number in range(100_000):
    held.append(bytes(4 << 20))
    if len(held) > 50:
        held.clear()
    print(f"indexed {number * 40} files", flush=True)
    time.sleep(1)
