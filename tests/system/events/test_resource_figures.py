"""What LIST and INSPECT say of memory and CPU time: by cgroups or without any, of running agents and of ended ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, killing_new_agents, until
from tests.system.agents import in_state, info, up
from tests.system.jails import crippled

WORK = """
held = bytearray(b"x" * (64 << 20))
import time
while time.process_time() < 0.2:
    pass
print("worked", flush=True)
time.sleep({})
"""
MIB = 1 << 20


def work(client: AgentOSClient, name: str, seconds: float, **more: Any) -> None:
    """Start an agent that holds 64 MiB and has used CPU time when this returns."""
    up(client.spawn(name, command=["python3", "-c", WORK.format(seconds)], **more))
    until(lambda: any("worked" in line["text"] for line in client.logs(name)["lines"]), f"{name} has worked")


def check_figures(client: AgentOSClient, **more: Any) -> None:
    work(client, "runs", 1000, **more)
    until(lambda: (info(client, "runs")["cpu_seconds"] or 0) >= 0.15, "the readings, up to a second old, are of now")
    now = info(client, "runs")
    assert 64 * MIB <= now["memory_bytes"] < 300 * MIB
    assert now["cpu_seconds"] < 60

    work(client, "ends", 0, **more)
    in_state(client, "ends", "exited")
    ended = info(client, "ends")
    assert ended["memory_bytes"] is None
    assert 64 * MIB <= ended["peak_memory_bytes"] < 300 * MIB
    assert 0.15 <= ended["cpu_seconds"] < 60
    usage = up(client.inspect("ends"))["usage"]
    assert (usage["peak"], usage["cpu_seconds"]) == (ended["peak_memory_bytes"], ended["cpu_seconds"])
    assert "in its last life" in usage["source"]


@pytest.mark.parametrize("isolation", ["standard", "none"])
def test_list_has_memory_and_cpu_time_of_running_and_ended_agents(client: AgentOSClient, isolation: str) -> None:
    check_figures(client, isolation=isolation)


@pytest.fixture(scope="module")
def ungrouped(kernels: None) -> Iterator[Kernel]:
    with crippled("--hide", "/sys/fs/cgroup") as kernel:
        yield kernel


@pytest.mark.parametrize("isolation", ["standard", "none"])
def test_it_has_them_without_a_cgroup_too(ungrouped: Kernel, isolation: str) -> None:
    with killing_new_agents(ungrouped), ungrouped.client() as client:
        check_figures(client, isolation=isolation)
        usage = up(client.inspect("ends"))["usage"]
        assert usage["source"].startswith("CPU time by wait4")
        assert info(client, "runs")["peak_memory_bytes"] is None
        assert "/proc, " in up(client.inspect("runs"))["usage"]["source"]


def test_an_agent_that_never_ran_has_no_figures(kernel: Kernel, client: AgentOSClient) -> None:
    client.spawn("never", command=["no-such-program"])

    never = info(client, "never")
    assert never["memory_bytes"] is never["peak_memory_bytes"] is never["cpu_seconds"] is None


TWO_PROCESSES = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
own, other = os.pipe()
if os.fork() == 0:
    held = bytearray(b"x" * (40 << 20))
    os.write(other, b"x")
    time.sleep(1000)
os.read(own, 1)
held = bytearray(b"x" * (40 << 20))
time.sleep(1000)
"""


def test_the_peak_of_one_killed_for_its_memory_is_not_below_the_limit(ungrouped: Kernel) -> None:
    """No process of it held as much alone."""
    with ungrouped.client() as client:
        up(client.spawn("two", command=["python3", "-c", TWO_PROCESSES], limits={"memory": "64M"}))
        client.exec("touch go", name="two")
        assert "memory limit 64M reached" in client.wait("two")["reason"]

        assert info(client, "two")["peak_memory_bytes"] >= 64 * MIB
        assert "of all its processes" in up(client.inspect("two"))["usage"]["source"]
