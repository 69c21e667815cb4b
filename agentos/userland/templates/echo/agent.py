"""Answers every message with the same text."""

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    print("waiting for messages", flush=True)
    while True:
        for message in kernel.recv_messages(timeout=60)["messages"]:
            print(f"{message['from_name']} says {message['message']}", flush=True)
            kernel.send_message(f"you said {message['message']}", to=message["from_id"])
