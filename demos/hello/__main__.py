"""``python -m demos.hello``: an agent is spawned, echoes a line through the kernel, and ends."""

from demos import stage
from demos.printing_client import open_printing_client

AGENT = str(stage.HERE / "hello" / "agent.py")


def hello(socket: str) -> None:
    with open_printing_client(socket) as kernel:
        stage.heading("The demo itself is a caller, too")
        said = "hello, kernel"
        stage.check(kernel("echo", said) == said, "the kernel returns every byte")

        stage.heading("An agent is any program: this one is a Python script of ten lines")
        spawned = kernel("spawn", "hello", AGENT)
        stage.check(spawned["success"], "the agent starts")
        stage.check(spawned["isolation"]["level"] == "standard", "the agent is in a jail")
        ended = kernel("wait", agent_id=spawned["id"], timeout=10)
        stage.check(ended.get("exit_code") == 0, "the agent ends with exit status 0")

        stage.heading("The kernel has kept its output")
        lines = [
            line["text"] for line in kernel.client.logs(agent_id=spawned["id"])["lines"] if line["stream"] == "stdout"
        ]
        for line in lines:
            stage.say(f"    hello | {line}")
        stage.check(any("from the other side" in line for line in lines), "the agent's echo arrives")

    stage.heading("What to notice")
    stage.notice(
        "The agent was a process of its own, in a jail of its own. "
        f"The kernel knows it as process {spawned['pid']}; in the jail, where process 1 is the kernel's shim and "
        "no other process exists, it is process 2."
    )
    stage.notice(
        "It gave no address and no name: the path of its socket is in its environment, and the kernel identifies the "
        "caller by the socket of the connection, not by the content of a call."
    )


stage.run_demo_with_kernel(hello, "Hello: one agent, one echo")
