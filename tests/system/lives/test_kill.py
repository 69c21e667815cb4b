"""KILL: in every state, with and without grace, and who ends before whom."""

import os
import re
import signal
import time
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, listens, until
from tests.support.wire import PATIENCE
from tests.system.agents import (
    RELAY_INSIDE,
    STUBBORN,
    TALKS,
    ask,
    in_state,
    info,
    known,
    lines,
    relay,
    up,
    write,
    written,
)

POLITE = """
import signal, sys, time
def leave(*_):
    print("leaving")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready")
time.sleep(1000)
"""

DEAF = "trap '' TERM; echo deaf now; while :; do sleep 1000; done"


def test_a_running_agent_is_asked_to_end_and_has_time_to(kernel: Kernel, client: AgentOSClient) -> None:
    agent = up(client.spawn("polite", write(kernel, "polite.py", POLITE)))
    written(client, "polite", "ready")

    reply = client.request(Op.KILL, {"name": "polite"})

    assert reply == {"killed": True, "agent_id": agent["id"]}
    assert lines(client, "polite") == ["ready", "leaving"]
    end = client.wait("polite", timeout=PATIENCE)
    assert (end["exit_code"], end["signal"], end["reason"]) == (0, None, "stopped: exit status 0")


@pytest.mark.parametrize("how", [{"shutdown": 0.3}, {"shutdown": "brutal_kill"}, {"grace": 0.3}, {"grace": 0}])
def test_an_agent_that_ignores_sigterm_is_killed_after_its_grace(
    kernel: Kernel, client: AgentOSClient, how: dict[str, object]
) -> None:
    grace = how.pop("grace", None)
    how.setdefault("shutdown", 3600)
    name = f"deaf-{grace}-{how['shutdown']}"
    up(client.spawn(name, write(kernel, "deaf.py", STUBBORN), **how))  # type: ignore[arg-type]
    written(client, name, "deaf now")
    began = time.monotonic()

    assert client.kill(name, grace=grace)  # type: ignore[arg-type]

    waited = time.monotonic() - began
    assert client.inspect(name)["spec"]["shutdown"] == how["shutdown"]
    assert waited >= (0.3 if 0.3 in (grace, how["shutdown"]) else 0)
    assert client.wait(name, timeout=PATIENCE)["signal"] == signal.SIGKILL


def test_sigterm_reaches_the_whole_process_group(kernel: Kernel, client: AgentOSClient) -> None:
    up(
        client.spawn(
            "pair",
            command=[
                "sh",
                "-c",
                "trap 'wait; exit 3' TERM; sh -c 'trap \"echo me too; exit\" TERM; "
                "echo on; while :; do sleep 0.01; done' & wait",
            ],
        )
    )
    written(client, "pair", "on")

    client.kill("pair")

    assert lines(client, "pair", "stdout") == ["on", "me too"]
    assert client.wait("pair", timeout=PATIENCE)["exit_code"] == 3


def test_its_whole_process_group_goes_with_it(kernel: Kernel, client: AgentOSClient) -> None:
    text = "import subprocess\nsubprocess.run(['sh', '-c', 'trap \"\" TERM; sleep 1000 & sleep 1000; wait'])\n"
    agent = up(client.spawn("group", write(kernel, "group.py", "print('on', flush=True)\n" + text), shutdown=0.2))
    until(lambda: len(kernel.processes_of_agent(agent["id"])) == 4, "it runs, with three of its group")

    client.kill("group")

    until(lambda: not kernel.processes_of_agent(agent["id"]), "all of the group have ended")


def test_a_paused_agent_hears_that_it_is_to_end(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("asleep", write(kernel, "polite.py", POLITE)))
    written(client, "asleep", "ready")
    up(client.pause("asleep"))

    client.kill("asleep")

    assert lines(client, "asleep")[-1] == "leaving"
    assert client.wait("asleep", timeout=PATIENCE)["exit_code"] == 0


def test_so_does_a_paused_agent_that_is_stopped_by_itself(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("doubly", command=["sh", "-c", "trap 'echo leaving; exit' TERM; echo on; kill -STOP $$; sleep 1"]))
    written(client, "doubly", "on")
    up(client.pause("doubly"))

    client.kill("doubly", grace=20)

    assert lines(client, "doubly")[-1] == "leaving"


@pytest.mark.parametrize("isolation", ["standard", "none"])
def test_a_stopped_process_hears_that_it_is_to_end(client: AgentOSClient, isolation: Any) -> None:
    program = "trap 'echo leaving; exit' TERM; echo on; kill -STOP $$; sleep 1000"
    up(client.spawn("stopped", command=["sh", "-c", program], isolation=isolation))
    written(client, "stopped", "on")

    client.kill("stopped", grace=60)

    assert lines(client, "stopped")[-1] == "leaving"


def test_an_agent_that_waits_for_its_restart_does_not_come_back(client: AgentOSClient) -> None:
    backoff = {"first": 30, "min": 30, "max": 30, "max_failures": 3}
    up(client.spawn("waits", command=["sleep", "1000"], restart="permanent", backoff=backoff))
    os.kill(known(client, "waits"), signal.SIGKILL)
    in_state(client, "waits", "backing_off")

    assert client.kill("waits")

    assert info(client, "waits")["state"] == "exited"
    assert client.wait("waits", timeout=PATIENCE)["signal"] == signal.SIGKILL


def test_a_stopping_agent_can_be_hurried(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("stuck", write(kernel, "deaf.py", STUBBORN), shutdown="infinity"))
    written(client, "stuck", "deaf now")
    with kernel.connect() as patient:
        patient.send(0x11, {"name": "stuck"})
        in_state(client, "stuck", "stopping")

        assert client.kill("stuck", grace=0)

        assert patient.receive().json["killed"]


def test_a_longer_grace_gives_a_stopping_agent_no_more_time(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("brief", write(kernel, "deaf.py", STUBBORN), shutdown=3))
    written(client, "brief", "deaf now")
    with kernel.connect() as first:
        first.send(0x11, {"name": "brief"})
        in_state(client, "brief", "stopping")

        client.kill("brief", grace=3600)


def test_what_an_agent_spawned_ends_before_it(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "boss", permissions=TALKS)
    nested = up(ask(client, boss, "spawn", name="middle", script=RELAY_INSIDE, permissions=TALKS, ready="hello"))["id"]
    up(ask(client, nested, "spawn", name="leaf", command=["sleep", "1000"]))

    assert client.kill("boss")

    kernel.wait_line(r"\| boss: stopped")
    ends = re.findall(r"\| (leaf|middle|boss): stopped: ", kernel.said)
    assert ends == ["leaf", "middle", "boss"]
    assert [info(client, name)["state"] for name in ends] == ["exited"] * 3


def test_no_grace_for_an_agent_is_none_for_what_it_spawned(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "hasty")
    up(ask(client, boss, "spawn", name="slow", command=["sh", "-c", DEAF], shutdown="infinity"))
    written(client, "slow", "deaf now")

    assert client.kill("hasty", grace=0)

    assert client.wait("slow", timeout=PATIENCE)["signal"] == signal.SIGKILL


def test_a_child_can_be_killed_alone(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "parent")
    up(ask(client, boss, "spawn", name="only", command=["sleep", "1000"]))
    pid = known(client, "only")

    assert client.kill("only")

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert info(client, "only")["state"] == "exited"
    assert info(client, "parent")["state"] == "running"


def test_an_agent_may_kill_itself(kernel: Kernel, client: AgentOSClient) -> None:
    boss = relay(kernel, client, "tired")

    client.send_message({"method": "kill", "with": {"agent_id": boss}}, to=boss)

    end = client.wait("tired", timeout=PATIENCE)
    assert (end["signal"], end["reason"]) == (signal.SIGTERM, "stopped: killed by SIGTERM")
    up(client.spawn("tired", command=["sleep", "1000"]))  # and the name is free


def test_a_permanent_agent_that_kills_itself_stays_away(kernel: Kernel, client: AgentOSClient) -> None:
    text = "from agentos import AgentOSClient\nme = AgentOSClient()\nme.kill(agent_id=me.hello()['agent_id'])\n"

    client.spawn("done", write(kernel, "done.py", text), restart="permanent")

    assert client.wait("done", timeout=PATIENCE)["success"]
    assert info(client, "done")["restarts"] == 0


def test_an_agent_that_has_ended_cannot_be_killed(client: AgentOSClient) -> None:
    up(client.spawn("late", command=["sleep", "1"]))
    client.wait("late", timeout=PATIENCE)

    reply = client.request(Op.KILL, {"name": "late"})

    assert (reply["killed"], reply["code"]) == (False, "not_found")
    assert reply["error"] == "late has ended already: exit status 0"


@pytest.mark.parametrize("fields", [{}, {"name": "x", "id": 1}, {"name": "nobody"}, {"id": 4_000_000_000}])
def test_the_target_of_a_kill_must_be_clear(kernel: Kernel, fields: dict[str, object]) -> None:
    with kernel.connect() as wire:
        reply = wire.call(0x11, fields)

    assert reply["killed"] is False
    assert reply["code"] == ("not_found" if len(fields) == 1 else "bad_request")


TREE = """
[[supervisor.children]]
name = "one"
command = ["sleep", "1000"]
[[supervisor.children]]
name = "inner"
type = "supervisor"
[[supervisor.children.children]]
name = "two"
command = ["sleep", "1000"]
[[supervisor.children.children]]
name = "three"
command = ["sleep", "1000"]
"""


@pytest.mark.usefixtures("kernels")
def test_a_declared_agent_stays_stopped_too_also_if_it_is_killed_while_the_tree_still_starts() -> None:
    """The kernel's door is open before its tree is up, and a group is known before it is up."""
    slow = TREE.replace('name = "three"', 'name = "three"\nready = "hello"')
    slow = slow.replace('type = "supervisor"', 'type = "supervisor"\nstrategy = "rest_for_one"')
    kernel = Kernel(slow)
    try:
        until(lambda: listens(kernel.socket), "the door is open")
        with kernel.client() as client, kernel.connect() as other:
            known(client, "three")
            in_state(client, "two", "running")
            other.send(0x11, {"name": "two"})
            assert other.is_silent()

            assert client.kill("three")

            assert other.receive().json["killed"]
            assert [info(client, name)["state"] for name in ("one", "two", "three")] == [
                "running",
                "stopped",
                "stopped",
            ]
            kernel.wait_ready()
            assert client.kill("one")
            for name in ("one", "two"):
                assert (info(client, name)["state"], info(client, name)["stopped_by"]) == ("stopped", "operator")
                assert client.wait(name, timeout=PATIENCE)["signal"] == signal.SIGTERM
                assert client.send_message("for later", to_name=name)["code"] == "not_found"
        kernel.stop()
    finally:
        kernel.clean_up()


def test_an_agent_that_takes_its_time_to_end_holds_up_no_other(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("slow", write(kernel, "deaf.py", STUBBORN), shutdown="infinity"))
    written(client, "slow", "deaf now")
    with kernel.connect() as patient:
        patient.send(0x11, {"name": "slow"})
        in_state(client, "slow", "stopping")

        up(client.spawn("quick", command=["sleep", "1000"]))
        assert client.kill("quick")

        assert info(client, "slow")["state"] == "stopping"
        client.kill("slow", grace=0)
        assert patient.receive().json["killed"]
