"""Asks the model for the finding of a text, and reports it and how many words the text has.

The second argument is a fault that it has, for the demo.
"""

import os
import sys
import time

from agentos_sdk import AgentOSClient

SYSTEM = "Answer with the one finding of this text about the tulip, in one short sentence."
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
    answer = kernel.think(text, system_instruction=SYSTEM)
    if not answer["success"]:
        sys.exit(f"the model doesn't answer: {answer['error']}")
    words: object = len(text.split()) if fault != "malformed" else "about a dozen"
    kernel.send_message({"words": words, "finding": answer["content"].strip()}, to=message["from_id"])
