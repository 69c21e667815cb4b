"""Takes its messages one by one, says what it got, and answers the sender."""

from agentos import AgentOSClient

with AgentOSClient() as kernel:
    name = kernel.hello()["name"]
    while True:
        for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
            kernel.send_message({"from": name, "i_got": message["message"]}, to=message["from_id"])
