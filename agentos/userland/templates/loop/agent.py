"""Works on the tasks that it is sent, with a model and tools, and answers with what came of each."""

from agentic import AgenticLoop, TaskResult
from agentos_sdk import AgentOSClient


def count_words(path: str) -> int:
    """Count the words of a text file."""
    with open(path) as file:
        return len(file.read().split())


def show(step: object) -> None:
    print(step, flush=True)


def answer(result: TaskResult) -> str:
    return result.summary if result.success else f"{result.status}: {result.summary or result.reason}"


with AgentOSClient() as kernel:
    loop = AgenticLoop(kernel, max_iterations=20, tools=[count_words], on_step=show)
    print("waiting for tasks", flush=True)
    while True:
        # A task is kept until it is answered: if this process crashes, the next one goes on with it.
        kept = kernel.fetch("current", scope="agent")
        if kept["success"] and kept["exists"]:
            current = kept["value"]
            kernel.send_message(answer(loop.run(current["task"])), to=current["from"])
            kernel.delete("current", scope="agent")
        for message in kernel.recv_messages(1, timeout=60)["messages"]:
            kernel.store("current", {"task": str(message["message"]), "from": message["from_id"]}, scope="agent")
