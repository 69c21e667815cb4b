"""Answers questions with the help of a model, and remembers the conversation with each caller."""

from typing import Any

from agentos_sdk import AgentOSClient

SYSTEM = "Answer in one or two sentences."
REMEMBERED = 10  # questions and answers of a conversation
CALLERS = 100  # conversations; the oldest is forgotten

conversations: dict[int, list[dict[str, Any]]] = {}  # by the caller's id

with AgentOSClient() as kernel:
    print("waiting for questions", flush=True)
    while True:
        for message in kernel.recv_messages(timeout=60)["messages"]:
            conversation = conversations.setdefault(message["from_id"], [])
            if len(conversations) > CALLERS:
                del conversations[next(iter(conversations))]
            conversation.append({"role": "user", "content": str(message["message"])})
            del conversation[: -2 * REMEMBERED - 1]
            thought = kernel.think(messages=conversation, system_instruction=SYSTEM)
            if thought["success"]:
                conversation.append({"role": "assistant", "content": thought["content"]})
                answer = thought["content"]
            else:
                conversation.pop()
                answer = f"I can't answer that now: {thought['error']}"
            print(f"{message['from_name']} asked {message['message']!r}: {answer}", flush=True)
            kernel.send_message(answer, to=message["from_id"])
