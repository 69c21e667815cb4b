"""``python -m demos.fibonacci``: agents that spawn agents; their count is compared with the kernel's tree and audit."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos import stage

HERE = stage.HERE / "fibonacci"
TITLE = "Fibonacci: agents that spawn agents, counted by the kernel"
N, VALUE = 5, 5
SHOWN = 8  # lines of the tree


def below(node: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[int, str]]:
    """The agents of a supervision tree with the number of agents above each."""
    is_agent = node["name"].partition(".")[0] == "fib" and node["type"] == "agent"
    if is_agent:
        yield depth, node["name"]
    for child in node.get("children", ()):
        yield from below(child, depth + is_agent)


def demo() -> None:
    stage.title(TITLE)
    stage.say(
        "fib(n) is fib(n-1) + fib(n-2). An agent that is asked for one spawns an agent for each of the two, and "
        "reports to its parent the sum, and how many agents were spawned below it."
    )
    stage.heading(f"One agent is asked for fib({N})")
    with stage.kernel() as running, AgentOSClient(running.socket) as client:
        script = str(HERE / "fibonacci.py")
        spawned = client.spawn("fib", script, args=["fib", str(N), "none"], restart="temporary")
        stage.check(spawned["success"], f"the agent starts: {spawned.get('error')}")
        stage.until(lambda: stage.said(client, "fib"), "the first agent has a result")
        value, reported = map(int, stage.said(client, "fib")[0].split())
        stage.say(f"fib({N}) = {value}; the agents say that they have spawned {reported} others.")
        stage.check(value == VALUE, "the number is right")
        show_evidence(client, reported)
        end(client)
        running.stop()
    stage.heading("What to notice")
    stage.notice("Each sum was made by a process in a jail of its own, which another one had spawned.")
    stage.notice("The agents only report a number. The kernel has started each process, so its count is the proof.")


def show_evidence(client: AgentOSClient, reported: int) -> None:
    stage.heading("What the kernel has")
    tree = list(below(client.tree()["tree"]))
    for depth, name in tree[:SHOWN]:
        click.echo(f"    {'  ' * depth}{name}")
    click.echo(f"    ... and {len(tree) - SHOWN} more")
    stage.check(len(tree) == reported + 1, "the tree has as many agents as were reported, and the first one")
    entries = stage.audited(client, "agents", reported, call="SPAWN", kind="agent", phase="outcome", outcome="ok")
    stage.say(f"The tree has {len(tree)} agents; the audit log has {len(entries)} calls of SPAWN by agents.")
    stage.check(len(entries) == reported, "the audit log has as many spawns as were reported")


def end(client: AgentOSClient) -> None:
    stage.heading("The first one is killed")
    client.kill("fib")
    stage.until(lambda: not any(each["name"].startswith("fib") for each in client.list_agents()), "all have ended")
    stage.say("All of them have ended with it.")


stage.run_demo(demo)
