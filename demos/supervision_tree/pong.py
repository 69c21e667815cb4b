"""Answers every ping with how many there have been in this life of its own."""

from agentos import AgentOSClient

with AgentOSClient() as kernel:
    count = 0
    while True:
        for message in kernel.recv_messages(timeout=60)["messages"]:
            count += 1
            kernel.send_message({"pong": count}, to=message["from_id"])
