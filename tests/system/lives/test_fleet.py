"""A fleet of eight declared agents: five misbehave, each in its own way, and the other three don't notice."""

from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info
from tests.system.jails import cgroups
from tests.system.lives.test_containers import child

SERVES = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.hello()
    while True:
        for message in me.recv_messages(timeout=300)["messages"]:
            me.send_message(message["message"] + 1, to=message["from_id"])
"""
CRASHES = '["sh", "-c", "sleep 0.3; exit 1"]'
HANGS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1000)\n"
LEAKS = "kept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))\n"
FLOODS = """
import threading
from agentos_sdk import AgentOSClient

def write():
    while True:
        print("x" * 200)

def call():
    with AgentOSClient() as me:
        while True:
            me.send_message("flood" * 100, to_name="flooder")
            me.list_agents(all=True)

threading.Thread(target=write).start()
call()
"""
SOUND = ("one", "two", "three")
ROUNDS = 5


def count_up(client: AgentOSClient, name: str, number: int) -> int:
    """Send a number to an agent that adds one; what it answers."""
    assert client.send_message(number, to_name=name)["success"]
    [message] = client.recv_messages(1, timeout=PATIENCE)["messages"]
    assert message["from_name"] == name
    return int(message["message"])


@pytest.mark.usefixtures("long")
def test_three_sound_agents_do_not_notice_five_that_misbehave(own_kernel: OwnKernel, tmp_path: Path) -> None:
    scripts = {"serves": SERVES, "hangs": HANGS, "leaks": LEAKS, "floods": FLOODS}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)

    def agent(name: str, script: str, *lines: str) -> str:
        return child(name, None, f'script = "{tmp_path}/{script}.py"', *lines)

    kernel = own_kernel(
        "".join(agent(name, "serves", 'ready = "hello"') for name in SOUND)
        + child("absent", '["python3", "nope.py"]', "max_restarts = 1", "backoff = { max = 0.2 }")
        + child("crasher", CRASHES, 'max_restarts = "unlimited"', "backoff = { min = 0.1, max = 1 }")
        + agent("hanger", "hangs", 'watchdog = "1s"', "max_restarts = 0")
        + agent("leaker", "leaks", 'limits = { memory = "64M" }', "max_restarts = 1", "backoff = { max = 0.2 }")
        + agent("flooder", "floods")
    )
    with kernel.client() as client:
        pids = {name: in_state(client, name, "running")["pid"] for name in SOUND}
        for number in range(ROUNDS):
            for name in SOUND:
                assert count_up(client, name, number) == number + 1

        in_state(client, "absent", "failed")
        in_state(client, "leaker", "failed")
        assert in_state(client, "hanger", "failed")["end"] == "killed: watchdog: no call for 1 s"
        until(lambda: info(client, "crasher")["restarts"] > 5, "it crashes for ever, more often than others may")
        if cgroups(kernel) is not None:  # otherwise Linux may refuse it the memory first, which is its own failure
            assert "memory limit 64M reached" in info(client, "leaker")["end"]
        assert info(client, "flooder")["restarts"] == 0
        assert client.stop(names=["hanger", "crasher", "flooder"])["success"]

        assert {name: info(client, name)["pid"] for name in SOUND} == pids
        assert {info(client, name)["restarts"] for name in SOUND} == {0}
    assert kernel.process.poll() is None
