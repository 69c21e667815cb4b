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
LONG = "echo two >> journal; sleep 600"
TASK = (
    "Keep a journal: append the line one to the file journal by a command; then run exactly "
    f"`{LONG}`; if that is interrupted, don't wait again; at last append the line three. No line may be there twice."
)
NAME = "task-1"
LINES = ("one", "two", "three")


class Working(threading.Thread):
    """Works on the task, with a connection of its own, and shows its steps; ``result`` is set at the end."""

    def __init__(self, socket: str, place: Path) -> None:
        super().__init__(daemon=True)
        self.result: TaskResult | None = None
        self.waits = threading.Event()  # set when the long command was shown
        self._socket, self._place = socket, place
        self._last_call = 0  # number of the step of the last call that was shown

    def run(self) -> None:
        with AgentOSClient(self._socket) as client:
            loop = AgenticLoop(client, workspace=str(self._place), on_step=self._show)
            self.result = loop.run(TASK, task_id=NAME)

    def _show(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"kind": "thought", "text": str(text)} if text:
                stage.say(f"    {NAME} | {text}")
            case {"kind": "call", "step": number} if number == self._last_call:
                stage.say(f"    {NAME} | (restarted: the records say that this call had begun)")
            case {"kind": "call", "step": number, "call": name, "arguments": arguments}:
                self._last_call = number
                stage.say(f"    {NAME} | {name}: {arguments.get('command') or arguments.get('path')}")
                if arguments.get("command") == LONG:
                    self.waits.set()
            case {"kind": "result", "ok": False, "result": str(text)}:
                stage.say(f"    {NAME} | result: {text.splitlines()[0]}")


def demo(config: Path | None) -> None:
    with (
        stage.shared_directory() as place,
        stage.kernel(config) as running,
        AgentOSClient(running.socket) as client,
    ):
        stage.heading("The task")
        stage.say(TASK)
        work(running.socket, client, place)
        show_evidence(client, place)
        running.stop()
    stage.heading("What to notice")
    stage.notice("Each call has a record before it begins and one after it has ended, in state that the kernel keeps.")
    stage.notice("What had only begun wasn't repeated: the model was told so, and looked for itself.")


def work(socket: str, client: AgentOSClient, place: Path) -> None:
    """Begin the task, kill its agent while the long command runs, and wait for the task's end."""
    stage.heading("Its agent works")
    working = Working(socket, place)
    working.start()
    stage.check(working.waits.wait(stage.PATIENCE), "the second command is begun")
    stage.until(lambda: journal(place) == ["one", "two"], "the second command has written its line")
    stage.heading("Its agent is killed while the second command runs")
    kill(client)
    working.join(stage.PATIENCE)
    stage.check(working.result is not None, "the task ends")
    assert working.result is not None
    stage.say(f"{working.result.status}: {working.result.summary}")
    stage.check(working.result.success, "the task is done")


def journal(place: Path) -> list[str]:
    """The lines of the journal by now."""
    file = place / "journal"
    return file.read_text().splitlines() if file.exists() else []


def kill(client: AgentOSClient) -> None:
    agent = next(each for each in client.list_agents() if each["name"] == NAME)
    stage.say(f"kill -9 {agent['pid']}")
    os.kill(agent["pid"], signal.SIGKILL)


def show_evidence(client: AgentOSClient, place: Path) -> None:
    stage.heading("What the audit log has of it")
    for end in stage.audited(client, "agents", call="AGENT_EXITED", name=NAME, about="killed by SIGKILL"):
        stage.say(f"    AGENT_EXITED {end['about']}")
    begun = stage.audited(client, "commands", len(LINES), call="EXEC", name=NAME, phase="intent")
    for entry in begun:
        stage.say(f"    EXEC {entry['about']}")
    commands = [entry["about"] for entry in begun for _ in range(entry["repeated"])]
    stage.check(commands.count(LONG) == 1, "the command that was interrupted was begun once")
    stage.check(len(commands) == len(set(commands)), "no command was begun twice")
    transcript = AgenticLoop(client).transcript(NAME)
    doubts = [line for line in transcript if "stopped while this ran" in str(line.get("result"))]
    stage.say(f"The task's records: {len(transcript)} lines, of them {len(doubts)} call in doubt.")
    stage.check(len(doubts) == 1, "the interrupted call is known as such")
    stage.say(f"The file journal: {', '.join(journal(place))}.")
    stage.check(journal(place) == list(LINES), "each line is in the journal once")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
