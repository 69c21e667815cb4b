"""``python -m demos.watch``: an agent and a person watch a worker; the kernel's events outlive its readers."""

import subprocess
import sys

from agentos_sdk import AgentOSClient
from demos import stage

CONFIG = stage.HERE / "watch" / "agentos.toml"
TITLE = "Events: a worker that fails twice, and an agent and a person that watch it"


def show_watcher(client: AgentOSClient) -> None:
    stage.heading("An agent watches: a rule lets it see what concerns the worker")
    stage.until(
        lambda: "the worker was refused READ" in stage.said(client, "watcher"),
        "the watcher is told what happens to the worker",
    )
    for line in stage.said(client, "watcher"):
        stage.say(f"    watcher | {line}")
    told = stage.said(client, "watcher")
    stage.check(told.count("the worker has ended: exit status 1") == 2, "it is told of both failures")
    stage.check(
        [line for line in told if "step" in line] == [f"the worker has done step {n}" for n in (1, 2, 3)], "in order"
    )


def show_person(socket: str) -> None:
    stage.heading("A person reads the same: agentos events --since 1m --type STATE_CHANGED --type 'SYSCALL_*'")
    command = [sys.executable, "-P", "-m", "agentos", "events", "--since", "1m", "--socket", socket]
    command += ["--type", "STATE_CHANGED", "--type", "SYSCALL_*"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line in shown:
        stage.say(f"    {line}")
    stage.check(any("SYSCALL_BLOCKED" in line and "/etc/shadow" in line for line in shown), "the refusal is an event")


def show_program(client: AgentOSClient) -> None:
    stage.heading("A program polls: it was away, and goes on after the last event that it has read")
    client.subscribe(["STATE_CHANGED"], prefix="plan", since=0)
    first = client.poll_events(max_events=1, timeout=stage.PATIENCE)["events"][0]
    stage.say(f"seq {first['seq']}: {first['data']}")
    rest = client.poll_events(since=first["seq"])["events"]
    for event in rest:
        stage.say(f"seq {event['seq']}: {event['data']}")
    stage.check([event["data"]["version"] for event in rest] == [2, 3], "nothing is lost or seen twice")
    stage.say(f"The value isn't in an event; it is {client.state['plan']} now.")


def demo() -> None:
    stage.title(TITLE)
    with stage.kernel(CONFIG) as running, AgentOSClient(running.socket) as client:
        show_watcher(client)
        show_person(running.socket)
        show_program(client)
        running.stop()
    stage.heading("What to notice")
    stage.notice(
        "Each agent sees what concerns itself and what it spawned. Others' events need a rule: events = [...]."
    )
    stage.notice("An event says that a key has changed or a message has come, never the value or the text.")


stage.run_demo(demo)
