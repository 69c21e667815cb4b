"""Last stage: adds up, and stores the sum in the kernel's state when all lines have come."""

from agentos_sdk import AgentOSClient

words: dict[int, int] = {}  # by line

with AgentOSClient() as kernel:
    while True:
        for message in kernel.recv_messages(timeout=60)["messages"]:
            counted = message["message"]
            words[counted["line"]] = counted["words"]
            if len(words) == counted["of"]:
                total = sum(words.values())
                stored = kernel.store("words", total, scope="agent")
                if not stored["success"]:
                    print(f"the sum was not stored: {stored['error']}", flush=True)
                print(f"{total} words in {len(words)} lines", flush=True)
                words.clear()
