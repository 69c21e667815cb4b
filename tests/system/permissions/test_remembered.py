"""What the kernel says of an agent that has ended, when many others have ended since."""

from typing import Any

from agentos.agents.registry import MAX_ENDED_WHOLE
from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.system.agents import up, write

CALLS = """
import sys
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.echo("here")
    me.read_file("/missing")
print("its last words")
print("and its complaint", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def replies(client: AgentOSClient, name: str) -> dict[str, Any]:
    (listed,) = [agent for agent in client.list_agents(all=True) if agent["name"] == name]
    return {
        "LIST": listed,
        "INSPECT": up(client.inspect(name)),
        "WAIT": client.wait(name=name),
        "LOGS": client.logs(name),
        "METRICS_AGENT": client.agent_metrics(listed["id"]),
    }


def test_its_replies_are_the_same_when_many_have_ended(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "calls.py", CALLS)
    for name, status in (("first", "0"), ("second", "3")):
        up(client.spawn(name, script, args=[status], runtime="fast", restart="temporary"))
        client.wait(name=name)
    before = {name: replies(client, name) for name in ("first", "second")}

    for number in range(MAX_ENDED_WHOLE + 1):
        client.spawn(f"later-{number}", command=["true"], isolation="none")  # it may end before it counts as started
        client.wait(name=f"later-{number}")

    assert {name: replies(client, name) for name in before} == before
    assert before["second"]["INSPECT"]["end"]["exit_code"] == 3
