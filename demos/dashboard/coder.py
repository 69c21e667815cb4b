"""Wants to push, which a person has to approve, again and again."""

import time

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    while True:
        reply = kernel.exec("git push origin main")
        print(f"push: {reply.get('error') or reply.get('stderr') or 'done'}", flush=True)
        time.sleep(5)
