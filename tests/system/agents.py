"""Agents to test with: their scripts, and what to ask about them."""

import time
from pathlib import Path
from textwrap import dedent
from typing import Any

from agentos.agents.life.output import MAX_BYTES, MAX_LINE_CHARS, MAX_LINES
from agentos.recordings.reader import read_recording
from agentos.services.audit.pace import INTENTS_PER_SECOND, MAX_BURST
from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import EXEC, PATIENCE, Wire, frame

SLEEPER = "import time\ntime.sleep(1000)\n"

RECORDED = """
[[agents]]
name = "{name}"
script = "{code}/{name}.py"
restart = "temporary"
record = true
"""
"""One that is recorded, in a configuration file."""

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf now", flush=True)
time.sleep(1000)
"""

RELAY = """
from agentos_sdk import AgentOSClient

me = AgentOSClient()
me.hello()

def run(code):
    exec(code, globals())
    return "done"

while True:
    for message in me.recv_messages(timeout=300)["messages"]:
        asked = message["message"]
        method = run if asked["method"] == "run" else getattr(me, asked["method"])
        answer = method(**asked.get("with", {}))
        me.send_message(answer, to=message["from_id"])
"""
"""Makes the calls that it is sent, or runs the code, and sends back what was answered."""

TALKS = {"level": "sandboxed", "allow": {"send": ["*"]}}
"""Permissions of an agent that answers the operator although another agent spawned it."""

RELAY_INSIDE = "/agent/relay.py"
"""Where a relay in a jail has its own script, to give to a child."""


ASKS_ENDPOINT = """
import json, os, urllib.error, urllib.request

def ask(text, **more):
    body = json.dumps({"model": "offline", "messages": [{"role": "user", "content": text}], **more}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
        return reply.read().decode()

def whole(text, **more):
    return json.loads(ask(text, **more))["choices"][0]["message"]["content"]

def streamed(text):
    events = [json.loads(line[6:]) for line in ask(text, stream=True).splitlines() if line.startswith("data: {")]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"])
"""
"""Asks the OpenAI endpoint without its package, which takes a second of CPU time to import."""


def write(kernel: Kernel, name: str, text: str) -> str:
    """A script in the kernel's place; its path."""
    path = kernel.place / name
    path.write_text(dedent(text))
    return str(path)


def relay(kernel: Kernel, client: AgentOSClient, name: str, **more: Any) -> int:
    """Start an agent that makes calls for us; its id."""
    return int(up(client.spawn(name, write(kernel, "relay.py", RELAY), ready="hello", **more))["id"])


def ask(client: AgentOSClient, agent: int, method: str, **arguments: object) -> Any:
    """What that agent was answered to a call of its own."""
    sent = client.send_message({"method": method, "with": arguments}, to=agent)
    assert sent["success"], sent
    [message] = client.recv_messages(1, timeout=PATIENCE)["messages"]
    assert message["from_id"] == agent
    return message["message"]


def up(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply that must be a success."""
    assert reply["success"], reply
    return reply


def info(client: AgentOSClient, name: str) -> dict[str, Any]:
    """What LIST says of the agent that got the name last."""
    return [agent for agent in client.list_agents(all=True) if agent["name"] == name][-1]


def known(client: AgentOSClient, name: str) -> int:
    """Wait until an agent of that name has a process; its pid."""

    def pids() -> list[int]:
        return [agent["pid"] for agent in client.list_agents() if agent["name"] == name and agent["pid"]]

    until(pids, f"{name} has a process")
    return pids()[-1]


def in_state(client: AgentOSClient, name: str, state: str) -> dict[str, Any]:
    """Wait until an agent is in that state; what LIST says of it then."""
    until(lambda: info(client, name)["state"] == state, f"{name} is {state}, it is {info(client, name)}")
    return info(client, name)


def lines(client: AgentOSClient, name: str, stream: str | None = None) -> list[str]:
    """What an agent has written, without the kernel's notes."""
    found = up(client.logs(name, tail=2000))["lines"]
    return [
        line["text"] for line in found if line["stream"] == stream or (stream is None and line["stream"] != "kernel")
    ]


def has_full_log(client: AgentOSClient, name: str) -> bool:
    """Whether an agent's log holds as much as is kept of it."""
    found = up(client.logs(name, tail=MAX_LINES))["lines"]
    return len(found) == MAX_LINES or sum(len(line["text"]) for line in found) > MAX_BYTES - MAX_LINE_CHARS


def written(client: AgentOSClient, name: str, line: str) -> None:
    """Wait until an agent has written that line."""
    until(lambda: line in lines(client, name), f"{name} writes {line!r}")


def use_up_burst(wire: Wire) -> None:
    """Have commands run, on a connection of version 2, until the caller, a new one, has at most 25 intents left.

    Most find no room, and only after their intents, of which those of many calls at once are on disk together: so a
    slow host, too, takes more of them than come in a second.
    """
    count, left, began = 0, float(MAX_BURST), time.monotonic()
    while left > 25:
        more = min(200, int(left))
        wire.write(b"".join(frame(EXEC, {"command": ["true"]}, number) for number in range(1, more + 1)))
        count += len(wire.replies(more))
        left = MAX_BURST + INTENTS_PER_SECOND * (time.monotonic() - began) - count


def as_agent(kernel: Kernel, number: int) -> AgentOSClient:
    """A client on an agent's own socket: who comes in there is that agent."""
    return AgentOSClient(str(kernel.runtime / f"{number}.sock"), PATIENCE)


def act(kernel: Kernel, number: int, method: str, **arguments: object) -> Any:
    """What an agent is answered to a call that is made in its name."""
    with as_agent(kernel, number) as agent:
        return getattr(agent, method)(**arguments)


def have_ended(path: Path, count: int) -> bool:
    """Whether a recording has that many lives, all of which have ended."""
    lives = read_recording(path).manifest.lives if (path / "recording.json").exists() else []
    return len(lives) == count and all(life.ended is not None for life in lives)
