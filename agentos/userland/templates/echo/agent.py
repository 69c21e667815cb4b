"""Answers every message with the same text."""

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    print("waiting for messages", flush=True)
    while True:
        for letter in kernel.recv_messages(timeout=60)["messages"]:
            print(f"{letter['from_name']} says {letter['message']}", flush=True)
            kernel.send_message(f"you said {letter['message']}", to=letter["from_id"])
