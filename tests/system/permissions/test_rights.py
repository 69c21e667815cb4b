"""What an agent may do to whom, how many it may spawn, and PAUSE, RESUME, WAIT, LOGS from inside."""

import contextlib
import os
import signal

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, proc_status, until
from tests.support.wire import PATIENCE
from tests.system.agents import RELAY_INSIDE, TALKS, as_agent, ask, info, known, lines, relay, up, write, written

CALLS: dict[str, dict[str, float]] = {"KILL": {}, "PAUSE": {}, "RESUME": {}, "WAIT": {"timeout": 0.01}, "LOGS": {}}


def test_an_agent_has_no_power_over_others(kernel: Kernel, client: AgentOSClient) -> None:
    agent, other = (int(up(client.spawn(name, command=["sleep", "1000"]))["id"]) for name in ("weak", "other"))

    with as_agent(kernel, agent) as weak:
        replies = [weak.request(Op[call], {"id": other, **fields}) for call, fields in CALLS.items()]

    assert [reply["code"] for reply in replies] == ["permission_denied"] * len(CALLS)
    why = "other: no rule of level sandboxed allows it; it is neither you nor"
    assert [why in reply["error"] for reply in replies] == [True] * len(CALLS)
    assert info(client, "other")["state"] == "running"


def test_nor_over_its_parent(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("parent", command=["sleep", "1000"]))["id"]
    with as_agent(kernel, parent) as above:
        child = up(above.spawn("c", command=["sleep", "1000"]))["id"]

    with as_agent(kernel, child) as below:
        replies = [below.request(Op[call], {"id": parent, **fields}) for call, fields in CALLS.items()]

    assert [reply["code"] for reply in replies] == ["permission_denied"] * len(CALLS)


def test_an_agent_commands_its_descendants(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "boss", permissions=TALKS)
    middle = up(ask(client, boss, "spawn", name="middle", script=RELAY_INSIDE, permissions=TALKS, ready="hello"))["id"]
    up(ask(client, middle, "spawn", name="leaf", command=["sh", "-c", "echo here; exec sleep 1000"]))
    written(client, "leaf", "here")

    assert ask(client, boss, "pause", name="leaf")["paused"]
    assert info(client, "leaf")["state"] == "paused"
    assert ask(client, boss, "resume", name="leaf")["resumed"]
    assert [line["text"] for line in ask(client, boss, "logs", name="leaf")["lines"]] == ["here"]
    assert ask(client, boss, "wait", name="leaf", timeout=0.01)["code"] == "timeout"
    assert ask(client, boss, "kill", name="leaf")
    assert ask(client, boss, "wait", name="leaf")["signal"] == 15


def test_an_agent_may_wait_for_and_read_itself(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "self")

    assert ask(client, agent, "wait", agent_id=agent, timeout=0.01)["code"] == "timeout"
    assert up(ask(client, agent, "logs", agent_id=agent))


def test_every_agent_may_list_and_write_to_every_agent(kernel: Kernel, client: AgentOSClient) -> None:
    one = relay(kernel, client, "one")
    two = up(client.spawn("two", command=["sleep", "1000"]))["id"]

    assert {agent["name"] for agent in ask(client, one, "list_agents")} >= {"one", "two"}
    assert up(ask(client, one, "send_message", message="hi", to_name="two"))["delivered_to"] == two


def test_the_thirty_third_child_is_refused_until_another_has_ended(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "many", limits={"max_pids": 100})
    for number in range(32):
        reply = ask(client, boss, "spawn", name=f"child-{number}", command=["sleep", "1000"])
        assert reply["success"], reply

    one_more = {"name": "child-32", "command": ["sleep", "1000"]}
    refused = ask(client, boss, "spawn", **one_more)
    assert (refused["code"], "32 living agents" in refused["error"]) == ("quota_exceeded", True)

    client.kill("child-7")
    until(lambda: ask(client, boss, "spawn", **one_more)["success"], "there is room again")


@pytest.mark.skipif(os.geteuid() != 0, reason="without a control group nothing counts a whole family's processes")
def test_what_an_agent_spawns_counts_as_its_own_processes(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "few", limits={"max_pids": 6})
    replies = [ask(client, boss, "spawn", name=f"one-{n}", command=["sleep", "1000"]) for n in range(4)]

    assert [reply["success"] for reply in replies] == [True, True, False, False]
    assert replies[3]["code"] == "quota_exceeded"
    assert "max_pids" in replies[3]["error"]


def test_children_of_children_and_those_that_are_spawned_at_the_same_moment_all_count(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("[kernel]\nmax_children = 2\nspawn_rate = 100\n")
    with kernel.client() as client:
        boss = relay(kernel, client, "boss", permissions=TALKS)
        child = up(ask(client, boss, "spawn", name="child", script=RELAY_INSIDE, permissions=TALKS, ready="hello"))[
            "id"
        ]
        up(ask(client, child, "spawn", name="leaf", command=["sleep", "1000"]))

        assert ask(client, child, "spawn", name="leaf2", command=["sleep", "1000"])["code"] == "quota_exceeded"
        up(client.spawn("mine", command=["sleep", "1000"]))  # the operator is not rationed
    with kernel.connect() as wire:
        assert wire.call(Op.HELLO, {"as": "visitor", "level": "standard"})["success"]
        replies = [wire.call(Op.SPAWN, {"name": f"guest-{n}", "command": ["sleep", "1000"]}) for n in range(3)]
        assert [reply.get("code", "started") for reply in replies] == ["started", "started", "quota_exceeded"]

    boss = kernel.spawn("another-boss", restart="temporary")
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(kernel.connect_as(boss)) for _ in range(6)]
        for number, wire in enumerate(wires):  # no child before: the supervisor of all is started for the first one
            wire.send(Op.SPAWN, {"name": f"twin-{number}", "command": ["sleep", "1000"], "restart": "temporary"})
        replies = [wire.receive().json for wire in wires]

    assert sorted(reply.get("code", "started") for reply in replies) == ["quota_exceeded"] * 4 + ["started"] * 2


def test_spawning_too_fast_is_refused_with_when_to_try_again(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("[kernel]\nmax_children = 2\nspawn_rate = 0.1\n")
    with kernel.client() as client:
        boss = relay(kernel, client, "boss")
        for _ in range(2):
            ask(client, boss, "spawn", name="brief", command=["true"])

        reply = ask(client, boss, "spawn", name="brief", command=["true"])

    assert reply["code"] == "quota_exceeded"
    assert "0.1 agents per second" in reply["error"]


def test_a_paused_agent_stands_still_and_goes_on(client: AgentOSClient) -> None:
    # One process: a shell that has just called vfork isn't stopped before its child, which is.
    counts = "import itertools, time\nfor count in itertools.count(): print(count, flush=True); time.sleep(0.01)"
    up(client.spawn("counts", command=["python3", "-c", counts]))
    pid = known(client, "counts")

    assert up(client.pause("counts"))["paused"]
    assert info(client, "counts")["state"] == "paused"
    until(lambda: "T (stopped)" in state_of(pid), "the process is stopped")
    count = len(lines(client, "counts"))
    assert client.pause("counts")["paused"]  # again is fine

    assert up(client.resume("counts"))["resumed"]
    until(lambda: len(lines(client, "counts")) > count + 3, "it goes on")
    assert client.resume("counts")["resumed"]
    assert proc_status(pid, "VmRSS") > 0


FAMILY = """
import os, time
for number in range(3):
    if os.fork() == 0:
        if number == 1:
            os.setpgid(0, 0)
        if number == 2:
            os.setsid()
        break
print("on", flush=True)
while True:
    time.sleep(0.001)
"""


def test_all_in_a_jail_stands_still_wherever_it_has_gone(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("family", write(kernel, "family.py", FAMILY)))
    until(lambda: lines(client, "family") == ["on"] * 4, "all have begun")
    shim, *programs = [one.pid for one in kernel.family]

    up(client.pause("family"))
    until(lambda: all("T (stopped)" in state_of(pid) for pid in programs), "all are stopped")
    assert len(programs) == 4
    until(lambda: "S (sleeping)" in state_of(shim), "its PID 1 isn't")

    up(client.resume("family"))
    until(lambda: not any("T (stopped)" in state_of(pid) for pid in programs), "all go on")


def test_a_paused_agent_can_be_killed_without_grace(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("frozen", write(kernel, "family.py", FAMILY)))
    until(lambda: lines(client, "frozen") == ["on"] * 4, "all have begun")
    up(client.pause("frozen"))

    assert client.kill("frozen", grace=0)

    assert client.wait("frozen", timeout=PATIENCE)["signal"] == signal.SIGKILL
    until(lambda: not kernel.family, "all have ended")


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith("State"))


def test_only_a_running_agent_can_be_paused(client: AgentOSClient) -> None:
    up(client.spawn("over", command=["sleep", "1"]))
    client.wait("over", timeout=PATIENCE)

    reply = client.pause("over")

    assert (reply["success"], reply["paused"], reply["code"]) == (False, False, "bad_request")
    assert client.resume("over")["resumed"] is False
