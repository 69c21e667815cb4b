"""Prints the seconds it has been alive, until it is told to stop; then says goodbye."""

import signal
import sys
import time

from agentos import AgentOSClient

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    with AgentOSClient() as kernel:
        kernel.hello()  # spawned with ready="hello": from here on it counts as started
    born = time.monotonic()
    while True:
        print(f"alive for {time.monotonic() - born:.1f} s", flush=True)
        time.sleep(0.2)
finally:
    print("told to stop: goodbye", flush=True)
