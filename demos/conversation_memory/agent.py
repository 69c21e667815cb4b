"""Holds a conversation, which it keeps in its private state: each turn is stored before it is told."""

from agentos_sdk import AgentOSClient

SYSTEM = "You are in a conversation. Answer its last line in one sentence, from what was said before."

with AgentOSClient() as kernel:
    while True:
        for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
            kept = kernel.fetch("talk", "agent")
            talk = [*(kept["value"] or []), f"user: {message['message']}"]
            answer = kernel.think("\n".join(talk), system_instruction=SYSTEM)["content"]
            kernel.store("talk", [*talk, f"you: {answer}"], "agent", if_version=kept["version"])
            kernel.send_message(answer, to=message["from_id"])
