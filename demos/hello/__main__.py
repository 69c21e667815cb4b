"""``python -m demos.hello``: an agent is spawned, echoes a line through the kernel, and ends."""

from demos import stage

AGENT = str(stage.HERE / "hello" / "agent.py")


def hello(socket: str) -> None:
    with stage.speaker(socket) as kernel:
        stage.act("We, at the terminal, are a caller too")
        said = "hello, kernel"
        stage.check(kernel("echo", said) == said, "the kernel gives every byte back")

        stage.act("An agent is any program: this one is a Python script of ten lines")
        born = kernel("spawn", "hello", AGENT)
        stage.check(born["success"], "the agent starts")
        stage.check(born["isolation"]["level"] == "standard", "the agent is in a jail")
        ended = kernel("wait", agent_id=born["id"], timeout=10)
        stage.check(ended.get("exit_code") == 0, "the agent ends with exit status 0")

        stage.act("What it printed, the kernel has kept")
        lines = [
            line["text"] for line in kernel.client.logs(agent_id=born["id"])["lines"] if line["stream"] == "stdout"
        ]
        for line in lines:
            stage.say(f"    hello | {line}")
        stage.check(any("from the other side" in line for line in lines), "the agent's echo arrives")

    stage.act("What to notice")
    stage.notice(
        "The agent was a process of its own, in a jail of its own. "
        f"The kernel knows it as process {born['pid']}; inside, where process 1 only looks after it and there is "
        "nobody else, it is process 2."
    )
    stage.notice(
        "It gave no address and no name: it found its kernel by the environment it was started with, and the kernel "
        "knew who called from the socket that the call came in by, not from anything the agent said."
    )


stage.play_with_kernel(hello, "Hello: one agent, one echo")
