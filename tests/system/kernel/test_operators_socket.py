"""Whoever comes in at the operator's door and descends from an agent is that agent."""

import json
import os

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.system.agents import lines, up, write

INTRUDER = """
import json, os, sys, time
from agentos_sdk import AgentOSClient, ConnectionFailed

def come_in():
    try:
        with AgentOSClient(sys.argv[1]) as me:
            hello = me.hello()
            killed, received = me.request(0x11, {"name": "victim"}), me.request(0x21, {"timeout": 0})
            print(json.dumps([hello["agent_id"], killed.get("code"), received.get("code")]), flush=True)
    except ConnectionFailed as error:
        print(json.dumps(str(error)), flush=True)

for _ in range(int(sys.argv[2])):
    if os.fork():
        os.wait() if sys.argv[3] == "waits" else time.sleep(1000)
        time.sleep(1000)
if sys.argv[3] == "orphaned":
    if os.fork():
        os._exit(0)
    os.setsid()
    while os.getppid() != int(sys.argv[4]):
        time.sleep(0.01)
come_in()
come_in()  # the end of a connection leaves the agent what it has
time.sleep(1000)
"""


@pytest.fixture
def victim(client: AgentOSClient) -> int:
    return int(up(client.spawn("victim", command=["sleep", "1000"]))["id"])


@pytest.mark.parametrize("generations", [0, 1, 3])
def test_a_descendant_of_an_agent_is_served_as_that_agent(
    kernel: Kernel, client: AgentOSClient, victim: int, generations: int
) -> None:
    name = f"intruder-{generations}"
    args = [kernel.socket, str(generations), "stays", str(kernel.pid)]

    agent = up(client.spawn(name, write(kernel, "intruder.py", INTRUDER), args=args, sandboxed=False))["id"]

    until(lambda: len(lines(client, name)) == 2, "it has tried twice")
    assert [json.loads(line) for line in lines(client, name)] == [[agent, "permission_denied", None]] * 2


def test_an_orphan_of_an_agent_is_refused(kernel: Kernel, client: AgentOSClient, victim: int) -> None:
    args = [kernel.socket, "1", "orphaned", str(kernel.pid)]

    up(client.spawn("forker", write(kernel, "intruder.py", INTRUDER), args=args, sandboxed=False))

    until(lambda: lines(client, "forker"), "it has tried")
    assert "you descend from this kernel but from none of its agents" in lines(client, "forker")[0]


@pytest.mark.parametrize("network", [False, True])
def test_from_a_jail_no_process_finds_the_operators_socket(
    kernel: Kernel, client: AgentOSClient, victim: int, network: bool
) -> None:
    args = [kernel.socket, "0", "stays", "1"]

    up(client.spawn(f"jailed-{network}", write(kernel, "intruder.py", INTRUDER), args=args, network=network))

    until(lambda: lines(client, f"jailed-{network}"), "it has tried")
    assert f"no kernel at {kernel.socket}" in lines(client, f"jailed-{network}")[0]


DESCENDANT = """
import json, os, sys, time
from agentos_sdk import AgentOSClient
for _ in range(int(sys.argv[1])):
    parent = os.getpid()
    if os.fork():
        os._exit(0) if parent != 2 else time.sleep(1000)  # 2: the program itself
    while os.getppid() == parent != 2:  # until it is an orphan
        time.sleep(0.01)
    os.setsid()
with AgentOSClient() as me:
    print(me.hello()["agent_id"], me.request(0x11, {"name": "victim"}).get("code"), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("generations", [0, 1, 3])
def test_every_process_in_a_jail_counts_as_its_agent_orphans_too(
    kernel: Kernel, client: AgentOSClient, victim: int, generations: int
) -> None:
    script = write(kernel, "descendant.py", DESCENDANT)

    agent = up(client.spawn(f"line-{generations}", script, args=[str(generations)]))["id"]

    until(lambda: lines(client, f"line-{generations}"), "it has tried")
    assert lines(client, f"line-{generations}") == [f"{agent} permission_denied"]


def test_every_other_process_of_this_uid_is_the_operator(client: AgentOSClient) -> None:
    hello = client.hello()

    assert hello["name"] == f"operator#{hello['agent_id']}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")
def test_another_uid_is_refused(kernel: Kernel) -> None:
    os.chmod(kernel.socket, 0o666)
    os.chmod(kernel.place, 0o755)
    read, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        os.setuid(65534)
        with kernel.connect() as wire:
            os.write(write_end, wire.receive().body)
        os._exit(0)
    os.waitpid(pid, 0)
    os.chmod(kernel.socket, 0o600)

    assert json.loads(os.read(read, 4096))["code"] == "permission_denied"
    os.close(read)
    os.close(write_end)
