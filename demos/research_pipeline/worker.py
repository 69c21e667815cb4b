"""Counts the words of a text and reports them. The second argument is a fault that it has: for the demo."""

import os
import sys
import time

from agentos_sdk import AgentOSClient

text, fault = sys.argv[1:]

with AgentOSClient() as kernel:
    [message] = kernel.recv_messages(max_messages=1, timeout=600)["messages"]
    kernel.send_message("begun", to=message["from_id"])
    match fault:
        case "memory":
            kept = []
            while True:
                kept.append(b"x" * (4 << 20))
        case "exception":
            raise RuntimeError("the pages are in no order")
        case "exit":
            os._exit(3)
        case "timeout":
            time.sleep(1000)
    words: object = len(text.split()) if fault != "malformed" else "about a dozen"
    kernel.send_message({"words": words}, to=message["from_id"])
