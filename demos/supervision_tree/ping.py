"""Sends pong a number every 1.5 seconds, and waits for the answer."""

import sys
import time

from agentos import AgentOSClient

INTERVAL = 1.5  # seconds

with AgentOSClient() as kernel:
    number = 0
    while True:
        number += 1
        sent = kernel.send_message({"ping": number}, to_name="pong")
        if not sent["success"]:
            sys.exit(sent["error"])
        answers = kernel.recv_messages(timeout=10)["messages"]
        if not answers:
            sys.exit("pong does not answer")
        print(f"sent {number}, {answers[0]['from_name']} answered {answers[0]['message']['pong']}", flush=True)
        time.sleep(INTERVAL)
