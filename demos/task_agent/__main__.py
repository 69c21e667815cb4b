"""``python -m demos.task_agent``: a task is killed in the middle, goes on, and does nothing twice."""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentic import AgenticLoop, TaskResult
from agentos_sdk import AgentOSClient
from demos import stage

HERE = stage.HERE / "task_agent"
TITLE = "An autonomous task that survives kill -9"
TASK = (
    "Keep a journal: append the line one to the file journal by a command; then run exactly "
    "`echo two >> journal; sleep 600`; at last append the line three. No line may be there twice."
)
NAME = "task-1"


class Working(threading.Thread):
    """Works on the task, with a connection of its own; ``result`` is set at the end."""

    def __init__(self, socket: str) -> None:
        super().__init__(daemon=True)
        self.socket = socket
        self.result: TaskResult | None = None

    def run(self) -> None:
        with AgentOSClient(self.socket) as client:
            self.result = AgenticLoop(client, on_step=show).run(TASK, task_id=NAME)


def show(step: Mapping[str, Any]) -> None:
    match step:
        case {"kind": "thought", "text": str(text)} if text:
            stage.say(f"    {NAME} | {text}")
        case {"kind": "call", "call": name, "arguments": arguments}:
            stage.say(f"    {NAME} | {name} {stage.format_reply(arguments)}")


def journal(client: AgentOSClient) -> str:
    """What the file has by now, as a command of the operator's in the agent's jail reads it."""
    reply = client.exec("cat journal", name=NAME)
    return str(reply["stdout"]) if reply["success"] else ""


def commands(client: AgentOSClient, least: int) -> list[str]:
    """The commands that the task's agent has begun, as the audit log has them."""
    entries = stage.audited(client, "commands", least, call="EXEC", name=NAME, phase="intent")
    return [entry["about"] for entry in entries]


def demo(config: Path | None) -> None:
    with stage.kernel(config) as running, AgentOSClient(running.socket) as client:
        stage.heading("The task")
        stage.say(TASK)
        working = Working(running.socket)
        working.start()
        stage.until(lambda: "two" in journal(client), "the second command runs")
        stage.heading("Its agent is killed while the second command runs")
        kill(client)
        working.join(stage.PATIENCE)
        stage.check(working.result is not None, "the task ends")
        assert working.result is not None
        stage.say(f"{working.result.status}: {working.result.summary}")
        stage.check(working.result.success, "the task is done")
        show_evidence(client)
        running.stop()
    stage.heading("What to notice")
    stage.notice("Each call has a record before it begins and one after it has ended, in the agent's state.")
    stage.notice("What had only begun wasn't repeated: the model was told so, and looked for itself.")


def kill(client: AgentOSClient) -> None:
    agent = next(each for each in client.list_agents() if each["name"] == NAME)
    os.kill(agent["pid"], signal.SIGKILL)
    stage.say(f"kill -9 {agent['pid']}")


def show_evidence(client: AgentOSClient) -> None:
    stage.heading("What the audit log has")
    stage.audited(client, "agents", call="AGENT_EXITED", name=NAME, about="killed by SIGKILL")
    begun = commands(client, 3)
    for command in begun:
        stage.say(f"    EXEC {command}")
    stage.check(len(begun) == len(set(begun)), "no command was begun twice")
    for word in ("one", "two", "three"):
        stage.check(sum(f"echo {word}" in each for each in begun) == 1, f"line {word} was written once")
    transcript = AgenticLoop(client).transcript(NAME)
    doubts = [line for line in transcript if "stopped while this ran" in str(line.get("result"))]
    stage.say(f"The task's records: {len(transcript)} lines, of them {len(doubts)} call in doubt.")
    stage.check(len(doubts) == 1, "the interrupted call is known as such")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
