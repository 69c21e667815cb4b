"""``python -m demos.research_pipeline``: workers fail in five ways, and the pipeline has the right number each time."""

import click

from agentos_sdk import AgentOSClient
from demos import stage

HERE = stage.HERE / "research_pipeline"
TITLE = "A research pipeline under five faults"
SECTIONS = (
    "The tulip came from the mountains of Asia",
    "In Holland a single bulb was once worth a house",
    "Today it is grown from bulbs and rarely from seed",
)
WORDS = sum(len(section.split()) for section in SECTIONS)
FAULTS = {
    "memory": "killed: memory limit 64M",
    "exception": "exit status 1",
    "exit": "exit status 3",
    "timeout": "stopped: killed by SIGTERM",
    "malformed": "exit status 0",
}
"""Each fault, and how the kernel says that the worker has ended."""
PATIENCE = 6.0  # seconds that a worker may take


def count(client: AgentOSClient, name: str, section: str, fault: str) -> int | None:
    """The words of a section, counted by a worker; None if it gives no number in time."""
    limits = {"memory": "64M"}
    args = [section, fault]
    spawned = client.spawn(name, str(HERE / "worker.py"), args=args, limits=limits, restart="temporary")
    stage.check(spawned["success"], f"the worker starts: {spawned.get('error')}")
    client.send_message("count", to=spawned["id"])
    ended = client.wait(agent_id=spawned["id"], timeout=PATIENCE)["success"]
    answers = [each["message"] for each in client.recv_messages()["messages"] if each["from_id"] == spawned["id"]]
    if not ended:
        client.kill(agent_id=spawned["id"])
    words = answers[0].get("words") if answers and isinstance(answers[0], dict) else None
    return words if isinstance(words, int) else None


def run(client: AgentOSClient, fault: str) -> int:
    """The words of all sections; the worker of the second one has the fault, and another one takes its place."""
    total = 0
    for number, section in enumerate(SECTIONS):
        attempt, words = 0, None
        while words is None:
            name = f"{fault}-{number}-{attempt}"
            words = count(client, name, section, fault if (number, attempt) == (1, 0) else "none")
            attempt += 1
        total += words
    return total


def demo() -> None:
    stage.title(TITLE)
    stage.say(f"Three workers count the words of a section each. Right is {WORDS}.")
    with stage.kernel() as running, AgentOSClient(running.socket) as client:
        for fault in FAULTS:
            stage.heading(f"The second worker's fault: {fault}")
            total = run(client, fault)
            show_end(client, fault)
            click.secho(f"    {total} words", fg="green" if total == WORDS else "red")
            stage.check(total == WORDS, "the number is right under each fault")
        running.stop()
    stage.heading("What to notice")
    stage.notice("The pipeline knows how each worker ended from the kernel: the worker itself says nothing any more.")
    stage.notice("A leak, a crash and a hang in one process of all three would have taken the other two with it.")


def show_end(client: AgentOSClient, fault: str) -> None:
    name = f"{fault}-1-0"
    ended = stage.audited(client, "agents", call="AGENT_EXITED", name=name)[0]["about"]
    stage.say(f"    {name}: {ended}")
    stage.check(ended.startswith(FAULTS[fault]), f"it has ended so: {FAULTS[fault]}")
    lives = [each["name"] for each in client.list_agents(all=True) if each["name"].startswith(f"{fault}-1-")]
    stage.check(lives == [name, f"{fault}-1-1"], "one other has taken its place")


stage.run_demo(demo)
