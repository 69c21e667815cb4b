"""``python -m demos.research_pipeline``: workers fail in five ways, and the pipeline has the right number each time."""

from pathlib import Path

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
FAULTY = 1  # number of the section: its first worker has the fault
ATTEMPTS = 2  # workers that a section may take
HANGS = 2.0  # seconds after which the worker that hangs is stopped; no other worker's end depends on a deadline


def read(client: AgentOSClient, name: str, section: str, fault: str) -> tuple[int, str] | None:
    """A worker's report of a section: how many words it has, and its finding, which the model has said.

    None if the worker ends without one, or is stopped.
    """
    args = [section, fault]
    spawned = client.spawn(name, str(HERE / "worker.py"), args=args, limits={"memory": "64M"}, restart="temporary")
    stage.check(spawned["success"], f"the worker starts: {spawned.get('error')}")
    begun = stage.ask_agent(client, name, "read")
    stage.check(begun == "begun", "the worker begins")
    deadline = HANGS if fault == "timeout" else stage.PATIENCE
    if not client.wait(agent_id=spawned["id"], timeout=deadline)["success"]:
        client.kill(agent_id=spawned["id"])
    answers = [each["message"] for each in client.recv_messages()["messages"] if each["from_id"] == spawned["id"]]
    answer = f"answer {answers[0]['words']!r}" if answers else "no answer"
    stage.say(f"    {name}: {end_of(client, name)}, {answer}")
    if not answers or not isinstance(answers[0]["words"], int):
        return None
    stage.say(f"        {answers[0]['finding']}")
    return answers[0]["words"], answers[0]["finding"]


def end_of(client: AgentOSClient, name: str) -> str:
    """How an agent has ended, as the audit log has it."""
    ends = stage.audited(client, "agents", call="AGENT_EXITED", name=name)
    stage.check(len(ends) == 1, "each worker lives once")
    return str(ends[0]["about"])


def run(client: AgentOSClient, fault: str) -> tuple[int, list[str]]:
    """The words of all sections and their findings.

    The first worker of one of them has the fault, and another one takes its place.
    """
    total, findings = 0, []
    for number, section in enumerate(SECTIONS):
        for attempt in range(ATTEMPTS):
            has_fault = (number, attempt) == (FAULTY, 0)
            report = read(client, f"{fault}-{number}-{attempt}", section, fault if has_fault else "none")
            if report is not None:
                total += report[0]
                findings.append(report[1])
                break
    return total, findings


def demo(config: Path | None) -> None:
    stage.say(
        "Three workers read a section each: each asks the model for its finding, and counts its words; right is "
        f"{WORDS} in all. The first worker of the second section has a fault, and another one has to take its place. "
        "How each has ended is from the audit log."
    )
    with stage.kernel(config) as running, AgentOSClient(running.socket) as client:
        for fault in FAULTS:
            stage.heading(f"The fault: {fault}")
            total, findings = run(client, fault)
            click.secho(f"    {total} words", fg="green" if total == WORDS else "red")
            stage.check(total == WORDS, "the number is right under each fault")
            stage.check(len(findings) == len(SECTIONS) and all(findings), "each section has a finding")
            check_ends(client, fault)
        running.stop()
    stage.heading("What to notice")
    stage.notice("The kernel says how each worker has ended: a worker that has crashed can't say it.")
    stage.notice("Each worker is a process: in one process of all three, a leak or a crash would have ended all.")


def check_ends(client: AgentOSClient, fault: str) -> None:
    """Compare the audit log with the fault: one worker has ended of it, and exactly one was started in its place."""
    started = [
        entry["name"]
        for entry in stage.audited(client, "agents", call="AGENT_EXITED")
        if entry["name"].startswith(f"{fault}-")
    ]
    expected = [f"{fault}-{number}-0" for number in range(len(SECTIONS))]
    expected.insert(FAULTY + 1, f"{fault}-{FAULTY}-1")
    stage.check(started == expected, "one other worker takes the place of the faulty one, and of no other")
    for name in started:
        wanted = FAULTS[fault] if name == f"{fault}-{FAULTY}-0" else "exit status 0"
        stage.check(end_of(client, name).startswith(wanted), f"{name} has ended so: {wanted}")
    askers = [name for name in started if name != f"{fault}-{FAULTY}-0" or fault == "malformed"]
    for name in askers:
        stage.audited(client, "model", call="THINK", name=name)
    entries = stage.audited(client, "model", call="THINK")
    asked = [entry["name"] for entry in entries if entry["name"].startswith(f"{fault}-")]
    stage.check(asked == askers, "each worker that got so far has asked the model once, and no other")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
