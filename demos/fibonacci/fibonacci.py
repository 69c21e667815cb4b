"""Computes a Fibonacci number: from 2 on it spawns an agent for each of the two before, and adds what they answer."""

import sys
from pathlib import Path

from agentos_sdk import AgentOSClient

SCRIPT = str(Path(__file__).resolve())
name, n, parent = sys.argv[1], int(sys.argv[2]), sys.argv[3]

with AgentOSClient() as kernel:
    own = kernel.hello()["agent_id"]
    value, spawned = n, 0
    if n > 1:
        for suffix, part in (("a", n - 1), ("b", n - 2)):
            child = f"{name}.{suffix}"
            reply = kernel.spawn(child, SCRIPT, args=[child, str(part), str(own)], restart="temporary")
            if not reply["success"]:
                sys.exit(f"{child}: {reply['error']}")
        answers = list[dict[str, int]]()
        while len(answers) < 2:
            answers += [each["message"] for each in kernel.recv_messages(timeout=60)["messages"]]
        value = sum(answer["value"] for answer in answers)
        spawned = sum(answer["spawned"] for answer in answers) + 2
    if parent == "none":
        print(f"{value} {spawned}", flush=True)
    else:
        kernel.send_message({"value": value, "spawned": spawned}, to=int(parent))
    while True:  # stay in the tree until the first one is killed
        kernel.recv_messages(timeout=60)
