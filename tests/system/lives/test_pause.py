"""PAUSE: whom it stops, with control groups and without."""

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.system.agents import ask, lines, relay, up

BEATS = "while :; do echo beat; sleep 0.05; done"


def test_an_agents_children_go_on_while_it_is_paused_and_can_be_paused_themselves(
    kernel: Kernel, client: AgentOSClient
) -> None:
    parent = relay(kernel, client, "parent")
    up(ask(client, parent, "spawn", name="child", command=["sh", "-c", BEATS]))

    up(client.pause("parent"))
    before = len(lines(client, "child"))
    until(lambda: len(lines(client, "child")) > before, "the child goes on")

    up(client.pause("child"))
    states = {agent["name"]: agent["state"] for agent in client.list_agents()}
    assert (states["parent"], states["child"]) == ("paused", "paused")
    up(client.resume("parent"))
    states = {agent["name"]: agent["state"] for agent in client.list_agents()}
    assert (states["parent"], states["child"]) == ("running", "paused")
