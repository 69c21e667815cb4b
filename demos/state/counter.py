"""Counts, and keeps the count as its own state."""

import time

from agentos import AgentOSClient

with AgentOSClient() as kernel:
    own = kernel.state.agent
    print("going on after", own.get("count", 0), flush=True)
    while True:
        own["count"] = own.get("count", 0) + 1
        time.sleep(0.05)
