"""Coming back: with the same id and mailbox, with growing delays, and not for ever."""

import os
import signal
import time

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import RELAY_INSIDE, TALKS, ask, in_state, info, known, lines, relay, up, write, written
from tests.system.lives.test_containers import BAD, child

READER = """
import os, time
from agentos_sdk import AgentOSClient
me = AgentOSClient()
me.hello()
print("up as", me.agent_id, flush=True)
while True:
    for message in me.recv_messages(timeout=300)["messages"]:
        print("got", message["message"], flush=True)
        if message["message"] == "die":
            os._exit(3)
"""


def test_a_restarted_agent_keeps_its_id_and_what_was_sent_meanwhile(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "reader.py", READER)
    first = up(client.spawn("reader", script, ready="hello", restart="permanent", backoff={"first": 0.5, "min": 0.5}))

    since = len(kernel.lines)
    client.send_message("die", to=first["id"])
    kernel.wait_line("reader: will be restarted in", since)
    for word in ("while", "you", "slept"):
        up(client.send_message(word, to_name="reader"))

    written(client, "reader", "got slept")
    again = info(client, "reader")
    assert (again["id"], again["restarts"]) == (first["id"], 1)
    assert again["pid"] != first["pid"]
    assert [line for line in lines(client, "reader") if line.startswith(("up", "got"))] == [
        f"up as {first['id']}",
        "got die",
        f"up as {first['id']}",
        *("got while", "got you", "got slept"),
    ]


def test_delays_grow_and_the_list_says_that_it_waits(kernel: Kernel, client: AgentOSClient) -> None:
    backoff = {"first": 0.1, "min": 0.3, "factor": 3, "jitter": 0}
    up(client.spawn("flaky", command=["sleep", "1000"], restart="permanent", max_restarts=5, backoff=backoff))
    for lives, delay in enumerate((0.1, 0.3, 0.9)):
        pid, since = known(client, "flaky"), len(kernel.lines)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda n=lives + 1: info(client, "flaky")["restarts"] == n, "it is back")  # type: ignore[misc]
        assert time.monotonic() - began >= delay
        kernel.wait_line(f"flaky: will be restarted in {delay} s", since)
        in_state(client, "flaky", "running")


def test_an_agent_that_keeps_crashing_is_given_up_and_its_spawner_is_told(client: AgentOSClient) -> None:
    agent = up(client.spawn("hopeless", command=["sh", "-c", "sleep 1; exit 9"], restart="permanent", max_restarts=2))

    end = client.wait("hopeless", timeout=PATIENCE)

    assert (end["success"], end["exit_code"], end["reason"]) == (True, 9, "exit status 9")
    assert info(client, "hopeless")["state"] == "failed"
    assert info(client, "hopeless")["restarts"] == 2
    [message] = client.recv_messages(timeout=PATIENCE)["messages"]
    assert (message["from_name"], message["from_kind"]) == ("kernel", "kernel")
    assert message["message"]["event"] == "AGENT_ESCALATED"
    assert (message["message"]["agent_id"], message["message"]["name"]) == (agent["id"], "hopeless")
    assert "3 restarts in 60 s were needed" in message["message"]["reason"]


def test_an_agent_is_told_that_its_child_was_given_up(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "boss")
    child = {"name": "child", "command": ["sh", "-c", "sleep 1; exit 9"], "restart": "permanent", "max_restarts": 0}

    up(ask(client, boss, "spawn", **child))

    # The relay takes the message for a request and ends by it: whoever watches sees what came.
    until(lambda: info(client, "boss")["state"] == "exited", "the boss has its message")
    assert info(client, "child")["state"] == "failed"
    assert "KeyError: 'method'" in lines(client, "boss")


def test_a_transient_agent_comes_back_after_a_crash_and_not_after_a_clean_end(client: AgentOSClient) -> None:
    up(client.spawn("once", command=["sh", "-c", "sleep 1"], restart="transient"))
    assert client.wait("once", timeout=PATIENCE)["exit_code"] == 0
    assert info(client, "once")["restarts"] == 0

    up(client.spawn("twice", command=["sleep", "1000"], restart="transient"))
    os.kill(known(client, "twice"), signal.SIGKILL)
    until(lambda: info(client, "twice")["restarts"] == 1, "it is back")


def test_a_temporary_agent_stays_away(client: AgentOSClient) -> None:
    up(client.spawn("gone", command=["sleep", "1000"]))

    os.kill(known(client, "gone"), signal.SIGKILL)

    end = client.wait("gone", timeout=PATIENCE)
    assert (end["exit_code"], end["signal"], end["reason"]) == (None, 9, "killed by SIGKILL")


def test_children_end_before_their_parent_comes_back(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "boss2", restart="permanent", permissions=TALKS)
    pid = known(client, "boss2")
    up(ask(client, boss, "spawn", name="kid", command=["sleep", "1000"]))
    grandchild = relay_of(client, boss)

    os.kill(pid, signal.SIGKILL)
    until(lambda: info(client, "boss2")["restarts"] == 1, "it is back")

    assert info(client, "kid")["state"] == "exited"
    assert info(client, "kid2")["state"] == "exited"
    assert info(client, "nested")["state"] == "exited"
    assert client.wait("kid", timeout=PATIENCE)["success"]
    assert client.wait(agent_id=grandchild, timeout=PATIENCE)["success"]
    up(ask(client, boss, "spawn", name="kid", command=["sleep", "1000"]))  # the name is free again


def relay_of(client: AgentOSClient, boss: int) -> int:
    """A relay that ``boss`` spawned, and that spawned ``kid2`` itself."""
    nested = up(ask(client, boss, "spawn", name="nested", script=RELAY_INSIDE, permissions=TALKS, ready="hello"))["id"]
    up(ask(client, nested, "spawn", name="kid2", command=["sleep", "1000"]))
    return int(nested)


def test_what_a_start_that_failed_had_spawned_ends_with_it(kernel: Kernel, client: AgentOSClient) -> None:
    text = """
        from agentos import AgentOSClient
        with AgentOSClient() as me:
            assert me.spawn("early", command=["sleep", "1000"])["success"]
        raise SystemExit(3)
        """

    reply = client.spawn("hasty", write(kernel, "hasty.py", text), ready="hello")

    assert reply["exit_code"] == 3
    assert client.wait("early", timeout=PATIENCE)["success"]
    assert info(client, "early")["state"] == "exited"


def test_a_declared_tree_escalates_and_the_kernel_says_why(own_kernel: OwnKernel) -> None:
    bad = child("bad", '["sh", "-c", "sleep 1; exit 5"]', "max_restarts = 1", 'on_give_up = "escalate"')
    kernel = own_kernel(f"[supervisor]\nintensity = 1\nperiod = 60\n{bad}")

    assert kernel.wait_end() == 1
    assert (
        "the kernel ends: the root supervisor gave up: 2 escalations in 60 s; the last time: bad: exit" in kernel.said
    )
    assert "root: given up: 2 escalations in 60 s; the last time: bad: exit status 5" in kernel.said
    assert kernel.said.count("bad: running") == 4  # the root forgives one escalation, and each time the agent one crash


@pytest.mark.usefixtures("kernels")
def test_a_tree_that_does_not_come_up_ends_the_kernel_with_the_reason() -> None:
    root = '[supervisor]\nstrategy = "one_for_all"\n'
    kernel = Kernel(root + child("bad", BAD))
    try:
        assert kernel.wait_end() == 1
        assert "gave up: bad did not start: exit status 5 before it was ready" in kernel.said
        assert "why" in kernel.said
        assert "Traceback" not in kernel.said
    finally:
        kernel.clean_up()
