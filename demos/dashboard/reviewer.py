"""Asks the model without a break, so that questions wait in line."""

import itertools
import time

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    for number in itertools.count(1):
        reply = kernel.think(f"Review change {number}: is this loop correct?")
        kernel.store("reviewed", number, scope="agent")
        kernel.write_file(f"/workspace/review-{number % 20}.txt", str(reply.get("content")))
        print(f"review {number}: {reply.get('content') or reply.get('error')}"[:200], flush=True)
        time.sleep(0.5)
