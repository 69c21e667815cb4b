"""Counts, and keeps the count as its own state."""

import time

from agentos import AgentOSClient

with AgentOSClient() as kernel:
    own = kernel.state.agent
    count = own.get("count", 0)
    print("going on after", count, flush=True)
    while True:
        count += 1
        own["count"] = count
        if count % 10 == 0:
            print("stored", count, flush=True)
        time.sleep(0.05)
