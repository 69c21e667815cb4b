"""Everything at once: whatever is done to a tree in whatever order, its books stay right and it ends well."""

import contextlib
import os
import random
import signal
import threading
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, marked, until
from tests.support.runs.rounds import rounds
from tests.system.agents import RELAY, write

AGENT = '\n[[{path}]]\nname = "{name}"\ncommand = ["sleep", "1000"]\n'
BACKOFF = 'backoff = { max = "300ms", max_failures = 9999 }\n'
GROUP = '\n[[{path}]]\nname = "{name}"\ntype = "supervisor"\nstrategy = "{strategy}"\nintensity = 2\nperiod = 2\n'
OFTEN = "max_restarts = 1000\nrestart_window = 1\n"


def tree() -> str:
    child = "supervisor.children"
    text = AGENT.format(path=child, name="alone") + BACKOFF + OFTEN
    for strategy in ("one_for_one", "rest_for_one", "one_for_all"):
        text += GROUP.format(path=child, name=strategy, strategy=strategy) + "backoff = { max = 0, min = 0 }\n" + OFTEN
        for number in range(3):
            text += AGENT.format(path=f"{child}.children", name=f"{strategy}-{number}") + BACKOFF
            text += "max_restarts = 2\nrestart_window = 2\n" if strategy == "one_for_one" else ""
    return text


def meddle(kernel: Kernel, seed: int, deeds: int) -> None:
    """One client that does what comes to its mind."""
    chance = random.Random(seed)
    script = str(kernel.place / "relay.py")
    with kernel.client() as client:
        for number in range(deeds):
            agents = client.list_agents(all=True)
            victim = chance.choice(agents)["id"]
            match chance.randrange(8):
                case 0 | 1:
                    name = f"agent-{seed}-{number}"
                    restart: Any = chance.choice(["permanent", "transient", "temporary"])
                    spawned = client.spawn(name, script, ready="hello", restart=restart, max_restarts=2)
                    if spawned["success"]:
                        child = {"name": f"{name}-child", "command": ["sleep", "1000"]}
                        client.send_message({"method": "spawn", "with": child}, to=spawned["id"])
                case 2:
                    client.kill(agent_id=victim, grace=chance.choice([None, 0, 0.1]))
                case 3 | 4 | 5:
                    pids = [agent["pid"] for agent in agents if agent["pid"]]
                    with contextlib.suppress(ProcessLookupError, IndexError):  # IndexError: nobody is alive just now
                        os.kill(chance.choice(pids), chance.choice([signal.SIGKILL, signal.SIGTERM]))
                case 6:
                    client.pause(agent_id=victim)
                case 7:
                    client.resume(agent_id=victim)


@pytest.mark.parametrize("seed", range(1, rounds(1) + 1))
def test_the_books_stay_right_whatever_is_done(own_kernel: OwnKernel, seed: int) -> None:
    kernel = own_kernel(tree())
    write(kernel, "relay.py", RELAY)
    threads = [threading.Thread(target=meddle, args=(kernel, 10 * seed + number, 30)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), kernel.said

    with kernel.client() as client:
        run = f"AGENTOS_RUN_ID={kernel.run_id}"
        until(lambda: listed(client) == set(marked(run)), "the list and the processes agree")
        assert "an observer failed" not in kernel.said
        assert " bug " not in kernel.said
        until(lambda: not living(client), "all are over")
        until(lambda: not marked(run), "nobody is left")


def listed(client: AgentOSClient) -> set[int]:
    return {agent["pid"] for agent in client.list_agents() if agent["pid"]}


def living(client: AgentOSClient) -> list[str]:
    """Who was not over yet; they have been ended now, but one may have come back with its group."""
    found = [agent for agent in client.list_agents() if not client.wait(agent_id=agent["id"], timeout=0.01)["success"]]
    for agent in found:
        client.kill(agent_id=agent["id"], grace=0)
    return [agent["name"] for agent in found]
