"""``python -m demos.conversation_memory``: an agent that is killed, and its kernel too, still knows what was said."""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos import stage

HERE = stage.HERE / "conversation_memory"
NAME = "companion"
TITLE = "Conversation memory: a talk that goes on after kill -9"


def agent(client: AgentOSClient) -> dict[str, Any]:
    """The agent as the kernel lists it."""
    return next(each for each in client.list_agents() if each["name"] == NAME)


def spawn(client: AgentOSClient) -> None:
    spawned = client.spawn(NAME, str(HERE / "agent.py"), restart="permanent")
    stage.check(spawned["success"], f"the agent starts: {spawned.get('error')}")


def ask(client: AgentOSClient, text: str) -> str:
    click.secho(f"you:   {text}", bold=True)
    answer = str(stage.ask_agent(client, NAME, text))
    stage.say(f"agent: {answer}")
    return answer


def kill_agent(client: AgentOSClient) -> None:
    pid = agent(client)["pid"]
    os.kill(pid, signal.SIGKILL)
    stage.say(f"kill -9 {pid}")
    stage.until(lambda: agent(client)["pid"] not in (pid, None), "the agent is restarted")
    stage.say(f"The kernel has restarted it {agent(client)['restarts']} time, as process {agent(client)['pid']}.")


def demo(config: Path | None) -> None:
    directory = tempfile.mkdtemp(prefix="aos-demo-")
    try:
        with stage.kernel(config, state_of=directory) as running, AgentOSClient(running.socket) as client:
            spawn(client)
            stage.heading("A talk begins")
            ask(client, "My name is Ada. I grow tulips.")
            ask(client, "Is it raining?")
            stage.heading("The agent is killed")
            kill_agent(client)
            stage.check("Ada" in ask(client, "What is my name?"), "it remembers the first turn")
            stage.heading("The kernel is killed, and another one started in its place")
            running.process.kill()
            running.process.wait()
            stage.say(f"kill -9 {running.process.pid}")
        with stage.kernel(config, state_of=directory) as running, AgentOSClient(running.socket) as client:
            spawn(client)
            stage.check("tulips" in ask(client, "What do I grow?").lower(), "it remembers the first turn")
            show_evidence(client)
            running.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def show_evidence(client: AgentOSClient) -> None:
    stage.heading("What the kernel has")
    talk = client.fetch("talk", "agent", agent=NAME)
    lines = talk["value"]
    stage.say(f"The state of {NAME}, version {talk['version']}: {len(lines)} lines, the first is {lines[0]!r}.")
    stage.check(talk["version"] == 4 and "Ada" in lines[0], "the kernel has the turns of all three lives")
    [asked] = client.get_contents(NAME)["questions"]
    turns = asked["messages"][-1]["text"].count("user: ")
    stage.say(f"This kernel has asked the model once, with {turns} turns in the question.")
    stage.check(turns == 4, "the model was shown what was said to the lives before")
    stage.heading("What to notice")
    stage.notice("Three processes under two kernels held this talk. Each turn was on disk before its answer was told.")
    stage.notice("The state belongs to the agent's name and its parent: no other agent can read it.")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
