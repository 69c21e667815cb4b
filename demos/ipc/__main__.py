"""``python -m demos.ipc``: register a name, send, receive and broadcast, with two agents at the other end."""

from typing import Any

from demos import stage
from demos.printing_client import PrintingClient, open_printing_client

NEIGHBOUR = str(stage.HERE / "ipc" / "neighbour.py")
NAMES = ("anna", "bert")


def ipc(socket: str) -> None:
    with open_printing_client(socket) as kernel:
        stage.heading("A name for us, and two agents to talk to")
        stage.check(kernel("register_name", "post-office")["success"], "a name that is free can be had")
        for name in NAMES:
            stage.check(kernel("spawn", name, NEIGHBOUR)["success"], f"{name} starts")

        stage.heading("One to one, by name; the answer comes back by the id that the message carries")
        for number in (1, 2, 3):
            stage.check(kernel("send_message", {"number": number}, to_name="anna")["success"], "it is delivered")
        got = [message["message"]["i_got"]["number"] for message in messages(kernel, 3)]
        stage.check(got == [1, 2, 3], "messages of one sender keep their order")

        stage.heading("One to all")
        told = kernel("broadcast", {"news": "the kettle is on"})
        stage.check(told["delivered_count"] >= len(NAMES), "all other agents get it")
        heard: set[str] = set()
        while not heard >= set(NAMES):
            heard |= {message["from_name"] for message in messages(kernel, 1)}

        stage.heading("Messages to unknown names, and names that are taken")
        stage.check(kernel("send_message", "hello?", to_name="nobody").get("code") == "not_found", "it is said")
        stage.check(kernel("register_name", "anna").get("code") == "already_exists", "a taken name is refused")
        for name in NAMES:
            kernel("kill", name)
    stage.heading("What to notice")
    stage.notice("The sender's name on a message is written by the kernel, not by the sender.")
    stage.notice("A mailbox is the kernel's, not the process's: a message waits there until it is read.")
    stage.notice("RECV waits without polling: timeout=5 is the longest that it may take, not how long it takes.")


def messages(kernel: PrintingClient, count: int) -> list[dict[str, Any]]:
    """The next ``count`` messages; what comes is shown."""
    got: list[dict[str, Any]] = []
    while len(got) < count:
        reply = kernel("recv_messages", timeout=5)
        stage.check(reply["count"] > 0, f"{count} messages come")
        got += reply["messages"]
    return got


stage.run_demo_with_kernel(ipc, "IPC: agents talk through the kernel")
