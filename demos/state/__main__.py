"""``python -m demos.state``: what an agent has stored survives its own end and its kernel's."""

import os
import shutil
import signal
import tempfile

from agentos_sdk import AgentOSClient
from demos import stage

CONFIG = stage.HERE / "state" / "agentos.toml"
TITLE = "State: a counter that is killed, a kernel that is killed, and a till with two clerks"


def begins(client: AgentOSClient) -> list[str]:
    """The first line of each life of the counter."""
    return [line for line in stage.said(client, "counter") if line.startswith("going on after ")]


def counted(client: AgentOSClient) -> int:
    """The number after which its present life goes on."""
    return int(begins(client)[-1].rpartition(" ")[2])


def show_crash(client: AgentOSClient) -> int:
    stage.heading("A counter keeps its count in the kernel; it is killed")
    stage.until(lambda: "stored 10" in stage.said(client, "counter"), "the counter counts")
    pid = next(agent["pid"] for agent in client.list_agents() if agent["name"] == "counter")
    os.kill(pid, signal.SIGKILL)
    stage.say(f"kill -9 {pid}")
    stage.until(lambda: len(begins(client)) > 1, "the counter is restarted")
    reached = counted(client)
    stage.say(f"    counter | {begins(client)[-1]}")
    stage.check(reached >= 10, "the counter goes on where it was")
    return reached


def show_till(client: AgentOSClient) -> None:
    stage.heading("Two clerks put 100 coins each into one till, at the same time")
    for name in ("anna", "bert"):
        stage.until(lambda: stage.said(client, name), "each clerk is done")  # noqa: B023
        stage.say(f"    {name} | {stage.said(client, name)[-1]}")
    till = client.state["till"]
    stage.say(f"In the till are {till} coins.")
    stage.check(till == 200, "no coin is lost")
    refused = client.explain("counter", "FETCH", {"key": "till"})
    stage.say(f"May the counter look into it? {refused['decision']}: {refused['reason']}")
    stage.check(refused["decision"] == "deny", "a global key needs a rule")


def demo() -> None:
    stage.title(TITLE)
    directory = tempfile.mkdtemp(prefix="aos-demo-")
    try:
        with stage.kernel(CONFIG, state_of=directory) as running, AgentOSClient(running.socket) as client:
            reached = show_crash(client)
            show_till(client)
            stage.heading("The kernel itself is killed, and another one started in its place")
            running.process.kill()
            running.process.wait()
            stage.say(f"kill -9 {running.process.pid}")
        with stage.kernel(CONFIG, state_of=directory) as running, AgentOSClient(running.socket) as client:
            stage.until(lambda: begins(client), "the counter begins again")
            stage.say(f"    counter | {begins(client)[-1]}")
            stage.check(counted(client) >= reached, "the count outlives the kernel")
            stage.check(client.state["till"] >= 200, "the till outlives the kernel")
            running.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    stage.heading("What to notice")
    stage.notice("What the kernel has acknowledged is on disk: neither kill -9 has lost any of it.")
    stage.notice("A key of its own needs no permission, and no other agent has it. The shared one needed rules.")


stage.run_demo(demo)
