"""Speaks in a discussion in its role. The sceptic has a bug: it dies of its second turn, in its first life."""

import os
import signal
import sys

from agentos_sdk import AgentOSClient

role = sys.argv[1]
SYSTEM = f"You are the {role} in a discussion. Say one sentence that takes up the last one."

with AgentOSClient() as kernel:
    while True:
        for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
            turns = kernel.fetch("turns", "agent")["value"] or 0
            kernel.store("turns", turns + 1, "agent")
            if role == "sceptic" and turns == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            answer = kernel.think(message["message"], system_instruction=SYSTEM)["content"]
            kernel.send_message(answer, to=message["from_id"])
