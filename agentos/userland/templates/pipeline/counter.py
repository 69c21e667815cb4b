"""Second stage: counts the words of each line."""

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    while True:
        for message in kernel.recv_messages(timeout=60)["messages"]:
            line = message["message"]
            counted = {"line": line["line"], "of": line["of"], "words": len(line["text"].split())}
            kernel.send_message(counted, to_name="collector")
